//! A client on stdin and stdout here, and a gateway that others use too over there: `nonet connect`, and `nonet` itself where
//! `[gateway] shared` is set.
//!
//! Messages pass as they are, byte for byte, both ways. What is remembered of them is what it takes to come back when the
//! other side was lost (it crashed, or was started anew): which requests await an answer, how the client shook hands, and what
//! it wants to hear of. The client then gets an error for what was under way, and goes on with the new one as if nothing had
//! happened.

mod http;
mod ledger;
mod message;
mod running;

use std::{
    collections::{BTreeSet, VecDeque},
    future::Future,
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
pub use http::Target;
use ledger::{Ledger, cancel};
use message::Message;
pub use running::{Running, Unanswered};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    task::JoinSet,
    time::Instant,
};

#[cfg(unix)]
use crate::shared::{Hello, SharedPlace};
use crate::{
    lines::{Line, LineReader, id_at_end, id_in},
    serve::MAX_MESSAGE,
};

/// How many messages wait on their way, each way.
const QUEUE: usize = 64;
/// How long answers that are still awaited may take when the client has left.
const DRAIN: Duration = Duration::from_secs(2);
/// How long the other side may take to shake hands anew.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// A link that held this long was a good one.
const HELD: Duration = Duration::from_secs(10);
/// How many links in a row may be lost sooner than that.
const MAX_LOSSES: u32 = 6;
/// How long is waited after the first of them; twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(100);
/// The code of errors that the bridge itself answers with (JSON-RPC's range for servers).
const LOST: i32 = -32000;

/// The other side.
pub enum Far {
    /// The shared gateway of this machine, which is started if it is not there.
    #[cfg(unix)]
    Shared(SharedPlace, Hello),
    /// A gateway behind a URL, over streamable HTTP.
    Http(Target),
}

/// Lines to the other side and back. It is lost when no more come back.
struct Link {
    to: mpsc::Sender<Bytes>,
    from: mpsc::Receiver<Back>,
    /// What moves them; ends with the link.
    tasks: JoinSet<()>,
}

/// What comes back.
enum Back {
    /// A message for the client.
    Line(Bytes),
    /// A message that did not arrive, and can be sent again.
    Unsent(Bytes),
}

impl Far {
    async fn open(&self) -> anyhow::Result<Link> {
        match self {
            #[cfg(unix)]
            Far::Shared(place, hello) => {
                let (reader, writer) = place.join(hello).await?;
                Ok(Link::over_lines(reader, writer))
            }
            Far::Http(target) => Link::over_http(target.clone(), http::PATIENCE),
        }
    }

    fn name(&self) -> String {
        match self {
            #[cfg(unix)]
            Far::Shared(..) => "the shared gateway".into(),
            Far::Http(target) => format!("the gateway at {}", target.shown()),
        }
    }
}

impl Link {
    #[cfg(unix)]
    fn over_lines(reader: crate::shared::SocketReader, writer: crate::shared::SocketWriter) -> Self {
        let (to, to_send) = mpsc::channel(QUEUE);
        let (received, from) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(write_lines(to_send, writer));
        tasks.spawn(read_lines(reader, received));
        Self { to, from, tasks }
    }

    /// `patience`: how long a gateway that cannot be reached is tried.
    fn over_http(target: Target, patience: Duration) -> anyhow::Result<Self> {
        let (to, to_send) = mpsc::channel(QUEUE);
        let (received, from) = mpsc::channel(QUEUE);
        let link = http::HttpLink::new(target, received, patience)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(link.run(to_send));
        Ok(Self { to, from, tasks })
    }
}

#[cfg(unix)]
async fn write_lines<W: AsyncWrite + Unpin>(mut lines: mpsc::Receiver<Bytes>, mut writer: W) {
    while let Some(line) = lines.recv().await {
        if writer.write_all(&line).await.is_err() {
            return;
        }
    }
    let _ = writer.shutdown().await;
}

#[cfg(unix)]
async fn read_lines<R: AsyncRead + Unpin>(mut reader: LineReader<R>, lines: mpsc::Sender<Back>) {
    while let Some(line) = reader.next().await {
        let too_long = |id: Option<Value>| {
            let message = "the answer is longer than what passes through the shared gateway";
            id.map(|id| error(&id.to_string(), LOST, message))
        };
        let line = match line {
            Line::Whole(mut line) => {
                line.extend_from_slice(b"\n");
                Some(line.freeze())
            }
            Line::TooLong(head) => too_long(id_in(&head)),
            Line::TooLongEnd(tail) => too_long(id_at_end(&tail)),
        };
        if let Some(line) = line
            && lines.send(Back::Line(line)).await.is_err()
        {
            return;
        }
    }
}

/// Which side ended.
enum Passed {
    ClientLeft,
    Lost,
}

/// One client, joined to the other side.
struct Bridge {
    far: Far,
    ledger: Ledger,
    /// Messages for the other side that it has not taken yet.
    held: VecDeque<Bytes>,
    /// Lines for the client. Without a limit: a client that writes much before it reads must not be stopped from writing.
    out: mpsc::UnboundedSender<Bytes>,
}

/// Joins a client on stdin and stdout to the other side until it leaves or `stop` ends. Fails if the other side cannot be
/// reached, or is lost again and again.
pub async fn run(far: Far, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let (reader, writer) = rmcp::transport::stdio_pipes();
    let (out, lines) = mpsc::unbounded_channel();
    let writing = tokio::spawn(write_out(lines, writer));
    let joined = join(far, LineReader::new(reader, MAX_MESSAGE), out, stop).await;
    // What it was told last.
    let _ = tokio::time::timeout(DRAIN, writing).await;
    joined
}

async fn write_out<W: AsyncWrite + Unpin>(mut lines: mpsc::UnboundedReceiver<Bytes>, mut out: W) {
    while let Some(line) = lines.recv().await {
        if out.write_all(&line).await.is_err() || out.flush().await.is_err() {
            return;
        }
    }
}

async fn join<R: AsyncRead + Unpin>(
    far: Far,
    mut client: LineReader<R>,
    out: mpsc::UnboundedSender<Bytes>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::pin!(stop);
    let mut bridge = Bridge { far, ledger: Ledger::default(), held: VecDeque::new(), out };
    let link = tokio::select! {
        passed = bridge.keep_passing(&mut client) => passed,
        () = &mut stop => return Ok(()),
    };
    match link {
        Ok(link) => tokio::select! {
            () = bridge.drain(link) => Ok(()),
            () = &mut stop => Ok(()),
        },
        Err(error) => {
            bridge.give_up(&format!("{error:#}"));
            Err(error)
        }
    }
}

impl Bridge {
    /// Passes messages, on one link after the other, until the client has left: the last link.
    async fn keep_passing<R: AsyncRead + Unpin>(
        &mut self,
        client: &mut LineReader<R>,
    ) -> anyhow::Result<Link> {
        let mut link = self.far.open().await?;
        let mut opened = Instant::now();
        let mut losses = 0;
        loop {
            if let Passed::ClientLeft = self.pass(client, &mut link).await? {
                return Ok(link);
            }
            self.give_up_awaited()?;
            loop {
                let good = std::mem::take(&mut self.ledger.answered) || opened.elapsed() > HELD;
                losses = if good { 1 } else { losses + 1 };
                anyhow::ensure!(losses < MAX_LOSSES, "{} is lost again and again", self.far.name());
                tracing::warn!("{} was lost; connecting anew", self.far.name());
                tokio::time::sleep(PAUSE * 2_u32.pow(losses - 1)).await;
                link = self.far.open().await?;
                opened = Instant::now();
                if self.shake_hands_anew(&mut link).await? {
                    break;
                }
            }
        }
    }

    /// Passes messages both ways until one of them ends.
    async fn pass<R: AsyncRead + Unpin>(
        &mut self,
        client: &mut LineReader<R>,
        link: &mut Link,
    ) -> anyhow::Result<Passed> {
        loop {
            tokio::select! {
                line = client.next(), if self.held.is_empty() => match line {
                    None => return Ok(Passed::ClientLeft),
                    Some(Line::Whole(mut line)) => {
                        line.extend_from_slice(b"\n");
                        self.held.extend(self.ledger.sent(line.freeze()));
                    }
                    Some(Line::TooLong(head)) => self.refuse(id_in(&head))?,
                    Some(Line::TooLongEnd(tail)) => self.refuse(id_at_end(&tail))?,
                },
                place = link.to.reserve(), if !self.held.is_empty() => match (place, self.held.pop_front()) {
                    (Ok(place), Some(line)) => place.send(line),
                    (_, line) => {
                        self.held.extend(line);
                        // What is still on its way back counts.
                        while let Some(back) = link.from.recv().await {
                            self.take(back)?;
                        }
                        return Ok(Passed::Lost);
                    }
                },
                back = link.from.recv() => match back {
                    Some(back) => self.take(back)?,
                    None => return Ok(Passed::Lost),
                },
            }
        }
    }

    fn take(&mut self, back: Back) -> anyhow::Result<()> {
        match back {
            Back::Line(line) => self.ledger.came(line).map_or(Ok(()), |line| self.write(line)),
            Back::Unsent(line) => {
                self.held.push_back(line);
                Ok(())
            }
        }
    }

    fn write(&self, line: Bytes) -> anyhow::Result<()> {
        self.out.send(line).ok().context("the client does not read any more")
    }

    fn refuse(&self, id: Option<Value>) -> anyhow::Result<()> {
        let Some(id) = id else { return Ok(()) };
        let message = format!("Invalid Request: longer than {MAX_MESSAGE} bytes");
        self.write(error(&id.to_string(), -32600, &message))
    }

    /// Answers what was under way when the link was lost, and takes back what the gateway asked. Requests that were not sent
    /// yet stay.
    fn give_up_awaited(&mut self) -> anyhow::Result<()> {
        self.ledger.losses += 1;
        for id in std::mem::take(&mut self.ledger.asked).into_keys() {
            self.write(cancel(&id))?;
        }
        // Answers to the gateway that is gone.
        self.held.retain(|line| Message::of(line).is_none_or(|message| message.method().is_some()));
        let held: BTreeSet<String> = self.held.iter().filter_map(|line| Message::of(line)?.id()).collect();
        let lost: Vec<String> = self.ledger.awaited.difference(&held).cloned().collect();
        self.ledger.awaited.retain(|id| held.contains(id));
        let message = format!(
            "{} ended while this was under way; whether it was done is not known. Nonet connects anew by itself: look, and call again.",
            self.far.name()
        );
        lost.iter().try_for_each(|id| self.write(error(id, LOST, &message)))
    }

    /// Answers everything that awaits an answer: there will be none.
    fn give_up(&mut self, why: &str) {
        let unanswered =
            self.ledger.initialize.take().filter(|(_, _, answered)| !answered).map(|(_, id, _)| id);
        let awaited = std::mem::take(&mut self.ledger.awaited);
        for id in awaited.into_iter().chain(unanswered) {
            let _ = self.write(error(&id, LOST, why));
        }
    }

    /// Does the client's handshake again on a new link, as far as it had come. `false` if that one is lost as well.
    async fn shake_hands_anew(&mut self, link: &mut Link) -> anyhow::Result<bool> {
        let Some((line, id, answered)) = self.ledger.initialize.clone() else { return Ok(true) };
        self.held.retain(|held| *held != line);
        if !answered {
            self.held.push_front(line);
            return Ok(true);
        }
        if link.to.send(line).await.is_err() {
            return Ok(false);
        }
        let deadline = Instant::now() + HANDSHAKE_LIMIT;
        loop {
            let back = tokio::time::timeout_at(deadline, link.from.recv()).await;
            let back = back.with_context(|| format!("{} does not shake hands", self.far.name()))?;
            match back {
                None => return Ok(false),
                Some(Back::Line(line)) if Message::of(&line).is_some_and(|message| message.answers(&id)) => {
                    if Message::of(&line).is_some_and(|message| message.is_result()) {
                        break;
                    }
                    tracing::warn!(answer = %String::from_utf8_lossy(&line), "the handshake was refused");
                    return Ok(false);
                }
                Some(back) => self.take(back)?,
            }
        }
        let Some(initialized) = self.ledger.initialized.clone() else { return Ok(true) };
        for line in std::iter::once(initialized).chain(self.ledger.wishes_anew()) {
            if link.to.send(line).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Hands on the answers that are still awaited when the client has left.
    async fn drain(&mut self, link: Link) {
        let Link { to, mut from, mut tasks } = link;
        let answers = async {
            while !self.ledger.awaited.is_empty() {
                match from.recv().await {
                    Some(back) => self.take(back)?,
                    None => break,
                }
            }
            anyhow::Ok(())
        };
        // A client that left does not mind.
        let _ = tokio::time::timeout(DRAIN, answers).await;
        drop(to);
        let ended = async {
            while from.recv().await.is_some() {}
            while tasks.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(DRAIN, ended).await;
    }
}

/// A JSON-RPC error as a line. `id` as it stands in the request.
fn error(id: &str, code: i32, message: &str) -> Bytes {
    error_line(id, &json!({ "code": code, "message": message }))
}

fn error_line(id: &str, error: &Value) -> Bytes {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n").into()
}
