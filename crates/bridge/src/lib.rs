//! Joins a client on this process's stdin and stdout to a gateway that other clients share: `nonet connect`,
//! and `nonet` itself where `[gateway] shared` is set.
//!
//! Messages pass both ways byte for byte. So that it can reconnect when the gateway crashes or restarts, the
//! bridge remembers the requests in flight, the client's handshake, and the client's subscriptions. The
//! client gets an error for each request in flight and continues the same session with the new gateway.

mod http;
mod ledger;
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
pub use running::{RequestFailure, RunningGateway};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
    task::JoinSet,
    time::Instant,
};

#[cfg(unix)]
use nonet_store::shared::{Hello, SharedPlace};
use nonet_wire::{Backlog, Limits, Line, LineReader, Message, MessageFault, MessageHead, WaitingMessage};

/// How many messages may wait in each direction.
const QUEUE: usize = 64;
/// How long to wait for outstanding answers after the client has left.
const DRAIN: Duration = Duration::from_secs(2);
/// How long a new gateway may take to answer the repeated handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// A link that lasted this long counts as good.
const HELD: Duration = Duration::from_secs(10);
/// How many links in a row may be lost sooner than [`HELD`].
const MAX_LOSSES: u32 = 6;
/// The delay after the first loss; it doubles after each further one.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest message from a client, in bytes. The gateway has its own limit.
const LONGEST: usize = Limits::HIGHEST.of_client.bytes;
/// How many bytes may wait for a client that does not read.
const UNREAD: usize = 64 << 20;
/// The code of the bridge's own errors (in JSON-RPC's range for servers).
const LOST: i32 = -32000;

/// The other side.
pub enum FarSide {
    /// The shared gateway of this machine, which is started if it is not there.
    #[cfg(unix)]
    Shared(SharedPlace, Hello),
    /// A gateway at a URL, over streamable HTTP.
    Http(Target),
}

/// Lines to the other side and back. The link is lost when no more lines come back.
struct LineLink {
    to: mpsc::Sender<Bytes>,
    from: mpsc::Receiver<ReturnedLine>,
    /// The tasks that move the lines. They end with the link.
    tasks: JoinSet<()>,
}

/// What comes back.
enum ReturnedLine {
    /// A message for the client.
    Line(Bytes),
    /// A message that did not arrive, and can be sent again.
    Unsent(Bytes),
}

impl FarSide {
    async fn open(&self) -> anyhow::Result<LineLink> {
        match self {
            #[cfg(unix)]
            FarSide::Shared(place, hello) => {
                let joined = place.join(hello).await?;
                Ok(LineLink::over_lines(joined.reader, joined.writer))
            }
            FarSide::Http(target) => LineLink::over_http(target.clone(), http::PATIENCE),
        }
    }

    fn name(&self) -> String {
        match self {
            #[cfg(unix)]
            FarSide::Shared(..) => "the shared gateway".into(),
            FarSide::Http(target) => format!("the gateway at {}", target.shown()),
        }
    }
}

impl LineLink {
    #[cfg(unix)]
    fn over_lines(
        reader: nonet_store::shared::SocketReader,
        writer: nonet_store::shared::SocketWriter,
    ) -> Self {
        let (to, to_send) = mpsc::channel(QUEUE);
        let (received, from) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(write_lines(to_send, writer));
        tasks.spawn(read_lines(reader, received));
        Self { to, from, tasks }
    }

    /// Returns a link over HTTP. `patience` is how long to keep trying a gateway that cannot be reached.
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
async fn read_lines<R: AsyncRead + Unpin>(mut reader: LineReader<R>, lines: mpsc::Sender<ReturnedLine>) {
    let mut open = None;
    while let Some(line) = reader.next().await {
        let line = match line {
            Line::Whole(mut line) => {
                line.extend_from_slice(b"\n");
                Some(line.freeze())
            }
            Line::TooLong(beginning) => {
                open = Some(MessageHead::of(&beginning));
                None
            }
            Line::TooLongEnd(tail) => {
                let id = open.take().and_then(|head| head.with_tail(&tail).id);
                id.map(|id| error(&id, LOST, "the answer is too long to pass through the shared gateway"))
            }
        };
        if let Some(line) = line
            && lines.send(ReturnedLine::Line(line)).await.is_err()
        {
            return;
        }
    }
}

/// Which side ended.
enum LinkEnd {
    ClientLeft,
    Lost,
}

/// One client, joined to the other side.
struct Bridge {
    far: FarSide,
    ledger: Ledger,
    /// Messages for the other side that it has not taken yet.
    held: VecDeque<Bytes>,
    /// A message from the client that is too long, kept until its end gives its id.
    too_long: Option<MessageHead>,
    /// Lines for the client, each with its share of the backlog. A client may write a lot before it reads,
    /// but once this much is unread, neither side is read any further.
    out: mpsc::UnboundedSender<(Bytes, WaitingMessage)>,
    backlog: Backlog,
}

/// Joins a client on stdin and stdout to the other side until the client leaves or `stop` resolves. Fails if
/// the other side cannot be reached or is lost repeatedly.
pub async fn run(far: FarSide, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let (reader, writer) = rmcp::transport::stdio_pipes();
    #[expect(clippy::disallowed_methods, reason = "`Backlog` bounds it")]
    let (out, lines) = mpsc::unbounded_channel();
    let writing = tokio::spawn(write_out(lines, writer));
    let joined = join(far, LineReader::new(reader, LONGEST), out, stop).await;
    // Let the last messages reach the client.
    let _ = tokio::time::timeout(DRAIN, writing).await;
    joined
}

async fn write_out<W: AsyncWrite + Unpin>(
    mut lines: mpsc::UnboundedReceiver<(Bytes, WaitingMessage)>,
    mut out: W,
) {
    while let Some((line, _waiting)) = lines.recv().await {
        if out.write_all(&line).await.is_err() || out.flush().await.is_err() {
            return;
        }
    }
}

async fn join<R: AsyncRead + Unpin>(
    far: FarSide,
    mut client: LineReader<R>,
    out: mpsc::UnboundedSender<(Bytes, WaitingMessage)>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::pin!(stop);
    let mut bridge = Bridge {
        far,
        ledger: Ledger::default(),
        held: VecDeque::new(),
        too_long: None,
        out,
        backlog: Backlog::new(UNREAD),
    };
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
    /// Passes messages, over one link after another, until the client has left. Returns the last link.
    async fn keep_passing<R: AsyncRead + Unpin>(
        &mut self,
        client: &mut LineReader<R>,
    ) -> anyhow::Result<LineLink> {
        let mut link = self.far.open().await?;
        let mut opened = Instant::now();
        let mut losses = 0;
        loop {
            if let LinkEnd::ClientLeft = self.pass(client, &mut link).await? {
                return Ok(link);
            }
            self.give_up_awaited()?;
            loop {
                let good = std::mem::take(&mut self.ledger.answered) || opened.elapsed() > HELD;
                losses = if good { 1 } else { losses + 1 };
                anyhow::ensure!(losses < MAX_LOSSES, "{} keeps disconnecting", self.far.name());
                tracing::warn!("{} was lost; reconnecting", self.far.name());
                tokio::time::sleep(PAUSE * 2_u32.pow(losses - 1)).await;
                link = self.far.open().await?;
                opened = Instant::now();
                if self.repeat_handshake(&mut link).await? {
                    break;
                }
            }
        }
    }

    /// Passes messages both ways until one side ends.
    async fn pass<R: AsyncRead + Unpin>(
        &mut self,
        client: &mut LineReader<R>,
        link: &mut LineLink,
    ) -> anyhow::Result<LinkEnd> {
        loop {
            self.backlog.unstuck().await;
            tokio::select! {
                line = client.next(), if self.held.is_empty() => match line {
                    None => return Ok(LinkEnd::ClientLeft),
                    Some(Line::Whole(mut line)) => {
                        line.extend_from_slice(b"\n");
                        self.held.extend(self.ledger.sent(line.freeze()));
                    }
                    Some(Line::TooLong(beginning)) => self.too_long = Some(MessageHead::of(&beginning)),
                    Some(Line::TooLongEnd(tail)) => self.refuse(&tail)?,
                },
                place = link.to.reserve(), if !self.held.is_empty() => match (place, self.held.pop_front()) {
                    (Ok(place), Some(line)) => place.send(line),
                    (_, line) => {
                        self.held.extend(line);
                        // Messages still on their way back count.
                        while let Some(back) = link.from.recv().await {
                            self.take(back)?;
                        }
                        return Ok(LinkEnd::Lost);
                    }
                },
                back = link.from.recv() => match back {
                    Some(back) => self.take(back)?,
                    None => return Ok(LinkEnd::Lost),
                },
            }
        }
    }

    fn take(&mut self, back: ReturnedLine) -> anyhow::Result<()> {
        match back {
            ReturnedLine::Line(line) => self.ledger.came(line).map_or(Ok(()), |line| self.write(line)),
            ReturnedLine::Unsent(line) => {
                self.held.push_back(line);
                Ok(())
            }
        }
    }

    fn write(&self, line: Bytes) -> anyhow::Result<()> {
        let waiting = self.backlog.enter(line.len());
        self.out.send((line, waiting)).ok().context("the client no longer reads")
    }

    /// Answers a request that is too long, once its end has arrived.
    fn refuse(&mut self, tail: &str) -> anyhow::Result<()> {
        let Some(head) = self.too_long.take().map(|head| head.with_tail(tail)) else { return Ok(()) };
        let fault = MessageFault::TooLong(LONGEST);
        let (code, message) = fault.of_request();
        match (head.asks(), head.id) {
            (_, None) => Ok(()),
            (true, Some(id)) => self.write(error(&id, code, &message)),
            // The gateway that asked must not wait for this answer.
            (false, Some(id)) => {
                let answer = error(&id, LOST, &format!("the client's answer is {fault}"));
                self.held.extend(self.ledger.sent(answer));
                Ok(())
            }
        }
    }

    /// Answers the requests that were in flight when the link was lost, and withdraws the gateway's own
    /// requests. Requests not sent yet stay queued.
    fn give_up_awaited(&mut self) -> anyhow::Result<()> {
        self.ledger.losses += 1;
        for id in std::mem::take(&mut self.ledger.asked).into_keys() {
            self.write(cancel(&id))?;
        }
        // Drop answers to the lost gateway.
        self.held.retain(|line| Message::of(line.clone()).is_none_or(|message| message.method().is_some()));
        let held: BTreeSet<String> =
            self.held.iter().filter_map(|line| Message::of(line.clone())?.id_text()).collect();
        let lost: Vec<String> = self.ledger.awaited.difference(&held).cloned().collect();
        self.ledger.awaited.retain(|id| held.contains(id));
        let message = format!(
            "{} ended while this request was in flight; it may or may not have been carried out. Nonet reconnects by itself: check, then call again.",
            self.far.name()
        );
        lost.iter().try_for_each(|id| self.write(error(id, LOST, &message)))
    }

    /// Answers every outstanding request with an error.
    fn give_up(&mut self, why: &str) {
        let unanswered =
            self.ledger.initialize.take().filter(|(_, _, answered)| !answered).map(|(_, id, _)| id);
        let awaited = std::mem::take(&mut self.ledger.awaited);
        for id in awaited.into_iter().chain(unanswered) {
            let _ = self.write(error(&id, LOST, why));
        }
    }

    /// Repeats the client's handshake on a new link, as far as the client had got. Returns `false` if the new
    /// link is lost as well.
    async fn repeat_handshake(&mut self, link: &mut LineLink) -> anyhow::Result<bool> {
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
            let back = back.with_context(|| format!("{} does not answer the handshake", self.far.name()))?;
            match back {
                None => return Ok(false),
                Some(ReturnedLine::Line(line)) if answers(&line, &id) => {
                    if Message::of(line.clone()).is_some_and(|message| message.result().is_some()) {
                        break;
                    }
                    tracing::warn!(answer = %String::from_utf8_lossy(&line), "the handshake was refused");
                    return Ok(false);
                }
                Some(back) => self.take(back)?,
            }
        }
        let Some(initialized) = self.ledger.initialized.clone() else { return Ok(true) };
        for line in std::iter::once(initialized).chain(self.ledger.subscriptions()) {
            if link.to.send(line).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes on the answers that are still outstanding when the client has left.
    async fn drain(&mut self, link: LineLink) {
        let LineLink { to, mut from, mut tasks } = link;
        let answers = async {
            while !self.ledger.awaited.is_empty() {
                match from.recv().await {
                    Some(back) => self.take(back)?,
                    None => break,
                }
            }
            anyhow::Ok(())
        };
        // The client has left, so a timeout does no harm.
        let _ = tokio::time::timeout(DRAIN, answers).await;
        drop(to);
        let ended = async {
            while from.recv().await.is_some() {}
            while tasks.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(DRAIN, ended).await;
    }
}

/// Returns whether a line answers the request with this id.
fn answers(line: &Bytes, id: &str) -> bool {
    Message::of(line.clone()).is_some_and(|message| message.answers(id))
}

/// Returns a JSON-RPC error as a line. `id` is written as in the request.
fn error(id: &str, code: i32, message: &str) -> Bytes {
    as_line(&Message::failure(id, code, message))
}

/// Returns a message as one line. Line breaks in JSON are white space outside strings and escaped inside
/// them, so dropping them is safe.
fn as_line(message: &[u8]) -> Bytes {
    let mut line = match message.trim_ascii() {
        message if message.contains(&b'\n') => {
            message.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')).copied().collect()
        }
        message => message.to_vec(),
    };
    line.push(b'\n');
    line.into()
}
