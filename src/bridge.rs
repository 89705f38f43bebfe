//! A client on stdin and stdout here, and a gateway that others use too over there: `nonet connect`, and `nonet` itself where
//! `[gateway] shared` is set.
//!
//! Messages pass as they are, byte for byte, both ways. What is remembered of them is what it takes to come back when the
//! other side was lost (it crashed, or was started anew): which requests await an answer, and how the client shook hands. The
//! client then gets an error for what was under way, and goes on with the new one as if nothing had happened.

mod http;
mod message;

use std::{
    collections::{BTreeSet, VecDeque},
    future::Future,
    time::Duration,
};

use anyhow::Context;
use bytes::Bytes;
pub use http::Target;
use message::Message;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    task::JoinSet,
    time::Instant,
};

#[cfg(unix)]
use crate::shared::{Hello, Place};
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
    Shared(Place, Hello),
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
        let (to, to_send) = mpsc::channel(QUEUE);
        let (received, from) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        match self {
            #[cfg(unix)]
            Far::Shared(place, hello) => {
                let (reader, writer) = place.join(hello).await?;
                tasks.spawn(write_lines(to_send, writer));
                tasks.spawn(read_lines(reader, received));
            }
            Far::Http(target) => {
                let link = http::HttpLink::new(target.clone(), received)?;
                tasks.spawn(link.run(to_send));
            }
        }
        Ok(Link { to, from, tasks })
    }

    fn name(&self) -> String {
        match self {
            #[cfg(unix)]
            Far::Shared(..) => "the shared gateway".into(),
            Far::Http(target) => format!("the gateway at {}", target.url),
        }
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
        if let Line::Whole(mut line) = line {
            line.extend_from_slice(b"\n");
            if lines.send(Back::Line(line.freeze())).await.is_err() {
                return;
            }
        }
    }
}

/// What is remembered of the messages of one client.
#[derive(Debug, Default)]
struct Ledger {
    /// Ids of requests that await an answer, as they stand in the message.
    awaited: BTreeSet<String>,
    /// The handshake of the session era, its id, and whether it was answered.
    initialize: Option<(Bytes, String, bool)>,
    /// The end of it.
    initialized: Option<Bytes>,
}

impl Ledger {
    fn sent(&mut self, line: &Bytes) {
        let Some(message) = Message::of(line) else { return };
        match (message.method(), message.id()) {
            (Some("initialize"), Some(id)) => {
                self.initialize = Some((line.clone(), id.into(), false));
                self.initialized = None;
            }
            (Some(_), Some(id)) => drop(self.awaited.insert(id.into())),
            (Some("notifications/initialized"), None) => self.initialized = Some(line.clone()),
            (Some("notifications/cancelled"), None) => {
                if let Some(id) = message.cancels() {
                    self.awaited.remove(&id);
                }
            }
            _ => {}
        }
    }

    fn came(&mut self, line: &[u8]) {
        let Some(message) = Message::of(line) else { return };
        let (None, Some(id)) = (message.method(), message.id()) else { return };
        self.awaited.remove(id);
        if let Some((_, of, answered)) = &mut self.initialize
            && of == id
        {
            *answered = true;
        }
    }
}

/// Which side ended.
enum Passed {
    ClientLeft,
    Lost,
}

/// One client, joined to the other side.
struct Bridge<W> {
    far: Far,
    ledger: Ledger,
    /// Messages for the other side that it has not taken yet.
    held: VecDeque<Bytes>,
    out: W,
}

/// Joins a client on stdin and stdout to the other side until it leaves or `stop` ends. Fails if the other side cannot be
/// reached, or is lost again and again.
pub async fn run(far: Far, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let (reader, writer) = rmcp::transport::stdio_pipes();
    join(far, LineReader::new(reader, MAX_MESSAGE), writer, stop).await
}

async fn join<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    far: Far,
    mut client: LineReader<R>,
    out: W,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::pin!(stop);
    let mut link = far.open().await?;
    let mut opened = Instant::now();
    let mut losses = 0;
    let mut bridge = Bridge { far, ledger: Ledger::default(), held: VecDeque::new(), out };
    loop {
        let passed = tokio::select! {
            passed = bridge.pass(&mut client, &mut link) => passed?,
            () = &mut stop => {
                bridge.ledger.awaited.clear();
                Passed::ClientLeft
            }
        };
        match passed {
            Passed::ClientLeft => return bridge.drain(link).await,
            Passed::Lost => {}
        }
        bridge.give_up_awaited().await?;
        loop {
            losses = if opened.elapsed() > HELD { 1 } else { losses + 1 };
            anyhow::ensure!(losses < MAX_LOSSES, "{} is lost again and again", bridge.far.name());
            tracing::warn!("{} was lost; connecting anew", bridge.far.name());
            tokio::time::sleep(PAUSE * 2_u32.pow(losses - 1)).await;
            link = bridge.far.open().await?;
            opened = Instant::now();
            if bridge.shake_hands_anew(&mut link).await? {
                break;
            }
        }
    }
}

impl<W: AsyncWrite + Unpin> Bridge<W> {
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
                        let line = line.freeze();
                        self.ledger.sent(&line);
                        self.held.push_back(line);
                    }
                    Some(Line::TooLong(head)) => self.refuse(id_in(&head)).await?,
                    Some(Line::TooLongEnd(tail)) => self.refuse(id_at_end(&tail)).await?,
                },
                place = link.to.reserve(), if !self.held.is_empty() => match (place, self.held.pop_front()) {
                    (Ok(place), Some(line)) => place.send(line),
                    (_, line) => {
                        self.held.extend(line);
                        return Ok(Passed::Lost);
                    }
                },
                back = link.from.recv() => match back {
                    Some(back) => self.take(back).await?,
                    None => return Ok(Passed::Lost),
                },
            }
        }
    }

    async fn take(&mut self, back: Back) -> anyhow::Result<()> {
        match back {
            Back::Line(line) => {
                self.ledger.came(&line);
                self.write(&line).await
            }
            Back::Unsent(line) => {
                self.held.push_back(line);
                Ok(())
            }
        }
    }

    async fn write(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let written = async {
            self.out.write_all(line).await?;
            self.out.flush().await
        };
        written.await.context("the client does not read any more")
    }

    async fn refuse(&mut self, id: Option<Value>) -> anyhow::Result<()> {
        let Some(id) = id else { return Ok(()) };
        let message = format!("Invalid Request: longer than {MAX_MESSAGE} bytes");
        self.write(&error(&id.to_string(), -32600, &message)).await
    }

    /// Answers what was under way when the link was lost. What was not sent yet stays.
    async fn give_up_awaited(&mut self) -> anyhow::Result<()> {
        let held: BTreeSet<String> =
            self.held.iter().filter_map(|line| Some(Message::of(line)?.id()?.to_string())).collect();
        let lost: Vec<String> = self.ledger.awaited.difference(&held).cloned().collect();
        self.ledger.awaited.retain(|id| held.contains(id));
        let message = format!(
            "{} ended while this was under way; whether it was done is not known. Nonet connects anew by itself: look, and call again.",
            self.far.name()
        );
        for id in lost {
            self.write(&error(&id, LOST, &message)).await?;
        }
        Ok(())
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
                    break;
                }
                Some(back) => self.take(back).await?,
            }
        }
        match &self.ledger.initialized {
            Some(line) => Ok(link.to.send(line.clone()).await.is_ok()),
            None => Ok(true),
        }
    }

    /// Hands on the answers that are still awaited when the client has left.
    async fn drain(mut self, link: Link) -> anyhow::Result<()> {
        let Link { to, mut from, mut tasks } = link;
        let answers = async {
            while !self.ledger.awaited.is_empty() {
                match from.recv().await {
                    Some(back) => self.take(back).await?,
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
        Ok(())
    }
}

/// A JSON-RPC error as a line. `id` as it stands in the request.
fn error(id: &str, code: i32, message: &str) -> Bytes {
    error_line(id, &json!({ "code": code, "message": message }))
}

fn error_line(id: &str, error: &Value) -> Bytes {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n").into()
}
