//! Copies of the lines where a company looks at logs: in a file, at a webhook, or at a syslog server.
//!
//! The files of the chains are the queue. An exporter reads them behind the writer, and remembers how far it came
//! (`export-NAME.json`) only once the receiver has the records, so that a receiver may get a record twice and
//! never misses one, unless its file was removed first. Of several gateways with one folder, one exports for all.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use nonet_api::status::AuditExportStatus;
use nonet_base::{
    files::{append_file, lock_file, open_file, read_at_most, replace_private},
    text::line,
};
use nonet_config::{AuditExportSettings, AuditFormat, Secret};
use nonet_wire::web;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UdpSocket},
    sync::mpsc,
    time::timeout,
};

use super::{
    Shared,
    files::{ChainFile, chain_files},
    now, records,
    writer::{WriterMessage, event},
};

/// How often the files are looked at, and whether stopping has begun.
const LOOK: Duration = Duration::from_millis(500);
/// The most records, and about the most bytes of lines, that go at once.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1 << 20;
/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 4 << 20;
/// How long a receiver may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest pause after a failure.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// How long the last lines may take when the gateway stops.
const LAST: Duration = Duration::from_secs(2);
/// The longest file with a position, in bytes.
const MAX_POSITIONS: usize = 64 << 10;
/// How much of a receiver's answer an error has, in characters.
const MAX_SAID: usize = 200;

/// How far an export has come, by chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Positions {
    chains: BTreeMap<u32, Position>,
}

/// The end of the last line that the receiver has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Position {
    /// The first line of its file.
    file: u64,
    /// The bytes of that file that were read.
    offset: u64,
    /// The number of the line.
    seq: u64,
}

/// Exports to one receiver.
pub(super) struct Exporter {
    name: String,
    settings: AuditExportSettings,
    shared: Arc<Shared>,
    folder: PathBuf,
    sender: mpsc::Sender<WriterMessage>,
    positions: Positions,
    receiver: Receiver,
    pauses: ExponentialBackoff,
}

/// The lines of one batch.
#[derive(Default)]
struct Batch {
    lines: Vec<Vec<u8>>,
    after: Positions,
    /// Lines whose file was removed before they were exported, by chain.
    lost: Vec<(u32, u64)>,
    /// Whether there may be more.
    is_full: bool,
}

impl Exporter {
    pub(super) fn new(
        name: &str,
        settings: &AuditExportSettings,
        shared: &Arc<Shared>,
        folder: &Path,
        sender: &mpsc::Sender<WriterMessage>,
    ) -> Self {
        Self {
            name: name.into(),
            settings: settings.clone(),
            shared: shared.clone(),
            folder: folder.into(),
            sender: sender.clone(),
            positions: Positions::default(),
            receiver: Receiver::Closed,
            pauses: pauses(),
        }
    }

    /// Exports until the gateway has stopped and the last lines were sent.
    pub(super) async fn run(mut self) {
        let Some(_lock) = self.turn().await else { return };
        self.positions = self.read_positions();
        loop {
            let is_last = self.shared.is_written_out();
            let ended = match is_last {
                true => timeout(LAST, self.catch_up()).await.unwrap_or(Ok(())),
                false => self.catch_up().await,
            };
            let pause = match ended {
                Ok(()) => {
                    self.works();
                    LOOK
                }
                Err(error) => {
                    self.fails(error);
                    self.receiver = Receiver::Closed;
                    self.pauses.next().unwrap_or(MAX_PAUSE)
                }
            };
            if is_last {
                return;
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.shared.is_written_out() {
                tokio::time::sleep(LOOK.min(pause)).await;
            }
        }
    }

    /// Waits until no other gateway exports this folder to this receiver.
    async fn turn(&self) -> Option<File> {
        loop {
            let lock = lock_file(&self.folder.join(format!("export-{}.lock", self.name)));
            if let Ok(lock) = lock
                && lock.try_lock().is_ok()
            {
                return Some(lock);
            }
            if self.shared.is_written_out() {
                return None;
            }
            self.status(|status| status.state = "elsewhere".into());
            tokio::time::sleep(LOOK).await;
        }
    }

    fn place(&self) -> PathBuf {
        self.folder.join(format!("export-{}.json", self.name))
    }

    fn read_positions(&self) -> Positions {
        match read_at_most(&self.place(), MAX_POSITIONS) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::error!(export = self.name, %error, "how far it came is damaged: every line is exported again");
                Positions::default()
            }),
            Err(_) => Positions::default(),
        }
    }

    /// Exports everything that is in the files.
    async fn catch_up(&mut self) -> io::Result<()> {
        loop {
            let batch = self.next_batch()?;
            for (chain, lines) in &batch.lost {
                tracing::error!(
                    export = self.name,
                    chain,
                    lines,
                    "lines of the audit log were removed before they were exported: raise `max_bytes` in [audit]"
                );
                self.tell("export_lost", json!({ "export": self.name, "chain": chain, "lines": lines }));
                self.status(|status| status.lost += lines);
            }
            let waiting = self.waiting(&self.positions);
            self.status(|status| status.waiting_bytes = waiting);
            if batch.lines.is_empty() && batch.after == self.positions {
                return Ok(());
            }
            if !batch.lines.is_empty() {
                self.send(&batch.lines).await?;
            }
            let text = serde_json::to_vec(&batch.after)?;
            replace_private(&self.place(), &text)?;
            self.positions = batch.after;
            self.pauses = pauses();
            let (sent, waiting) = (batch.lines.len() as u64, self.waiting(&self.positions));
            self.status(|status| {
                status.lines += sent;
                status.waiting_bytes = waiting;
            });
            if !batch.is_full {
                return Ok(());
            }
        }
    }

    /// Returns how many bytes of lines the receiver does not have yet.
    fn waiting(&self, positions: &Positions) -> u64 {
        let files = chain_files(&self.folder).unwrap_or_default();
        let left = |file: &ChainFile| {
            let known = positions.chains.get(&file.chain);
            let length = std::fs::metadata(&file.path).map_or(0, |data| data.len());
            match known {
                Some(known) if file.first < known.file => 0,
                Some(known) if file.first == known.file => length.saturating_sub(known.offset),
                _ => length,
            }
        };
        files.iter().map(left).sum()
    }

    /// Returns the next lines of all chains.
    fn next_batch(&self) -> io::Result<Batch> {
        let mut batch = Batch { after: self.positions.clone(), ..Batch::default() };
        let mut bytes = 0;
        for file in chain_files(&self.folder)? {
            let position = batch.after.chains.entry(file.chain).or_default();
            if file.first < position.file {
                continue;
            }
            if file.first > position.file {
                // The files before are read to their end, or gone.
                if file.first > position.seq + 1 && position.file > 0 {
                    batch.lost.push((file.chain, file.first - position.seq - 1));
                }
                *position = Position { file: file.first, offset: 0, seq: file.first - 1 };
            }
            let mut lines = open_file(&file.path)?;
            lines.seek(SeekFrom::Start(position.offset))?;
            let mut lines = BufReader::new(lines);
            loop {
                if batch.lines.len() >= BATCH || bytes >= BATCH_BYTES {
                    batch.is_full = true;
                    return Ok(batch);
                }
                let mut line = Vec::new();
                let read = io::Read::take(&mut lines, MAX_LINE).read_until(b'\n', &mut line)?;
                // A line is written whole; what has no end yet is read next time.
                if read == 0 || line.pop_if(|last| *last == b'\n').is_none() {
                    break;
                }
                position.offset += read as u64;
                // What a crash has torn is no line, and the next one says so.
                if let Ok(Numbered { seq }) = serde_json::from_slice(&line) {
                    position.seq = seq;
                    bytes += line.len();
                    batch.lines.push(line);
                }
            }
        }
        Ok(batch)
    }

    async fn send(&mut self, lines: &[Vec<u8>]) -> io::Result<()> {
        let records = lines.iter().filter_map(|line| records::record(self.settings.format, line)).collect();
        let sending = self.receiver.send(&self.settings, records);
        timeout(LIMIT, sending).await.unwrap_or_else(|_| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("it did not take the records within {LIMIT:?}"),
            ))
        })
    }

    fn status(&self, change: impl FnOnce(&mut AuditExportStatus)) {
        let mut exports = self.shared.exports.lock();
        let status = exports.entry(self.name.clone()).or_insert_with(|| AuditExportStatus {
            name: self.name.clone(),
            state: "ok".into(),
            ..AuditExportStatus::default()
        });
        change(status);
    }

    /// Notes that the receiver takes records.
    fn works(&self) {
        let mut was_failing = false;
        self.status(|status| {
            was_failing = status.error.take().is_some();
            status.state = "ok".into();
        });
        if was_failing {
            tracing::info!(export = self.name, "audit lines are exported again");
            self.tell("export_works", json!({ "export": self.name }));
        }
    }

    /// Notes that the receiver takes no records. Calls go on: the files keep the lines.
    fn fails(&self, error: io::Error) {
        let why = line(&error.to_string(), MAX_SAID);
        let waiting = self.waiting(&self.positions);
        let mut is_new = false;
        self.status(|status| {
            is_new = status.error.is_none();
            status.state = "failing".into();
            status.error = Some(why.clone());
            status.waiting_bytes = waiting;
        });
        if is_new {
            tracing::error!(
                export = self.name,
                error = why,
                "audit lines cannot be exported; they wait in the files"
            );
            self.tell("export_failing", json!({ "export": self.name, "error": why }));
        }
    }

    fn tell(&self, name: &'static str, about: Value) {
        let line = WriterMessage::Line { at_ms: now(), entry: event(name, about), written: None };
        if self.sender.try_send(line).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The part of a line that numbers it.
#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_secs(1))
        .with_max_delay(MAX_PAUSE)
        .without_max_times()
        .with_jitter()
        .build()
}

/// The open way to a receiver.
enum Receiver {
    Closed,
    Tcp(TcpStream),
    Udp(UdpSocket),
    Web(reqwest::Client),
}

impl Receiver {
    async fn send(&mut self, settings: &AuditExportSettings, records: Vec<String>) -> io::Result<()> {
        if let Some(file) = &settings.file {
            let mut text = records.join("\n");
            text.push('\n');
            let mut file = append_file(file)?;
            file.write_all(text.as_bytes())?;
            return file.sync_data();
        }
        if let Some(webhook) = &settings.webhook {
            return self.post(webhook.expose(), &settings.headers, &records).await;
        }
        let Some(address) = &settings.syslog else { return Ok(()) };
        let (scheme, host) = address.split_once("://").unwrap_or_default();
        if matches!(self, Self::Closed) {
            *self = match scheme {
                "udp" => {
                    let to = tokio::net::lookup_host(host).await?.next();
                    let to = to.ok_or_else(|| io::Error::other("its host has no address"))?;
                    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).await?;
                    socket.connect(to).await?;
                    Self::Udp(socket)
                }
                _ => Self::Tcp(TcpStream::connect(host).await?),
            };
        }
        for record in records {
            let message = match settings.format {
                AuditFormat::Syslog => record,
                AuditFormat::Ocsf => records::framed(&record),
            };
            match self {
                // One message in a datagram (RFC 5426, section 3.1).
                Self::Udp(socket) => drop(socket.send(message.as_bytes()).await?),
                // Each with its length (RFC 6587, section 3.4.1).
                Self::Tcp(stream) => {
                    stream.write_all(format!("{} {message}", message.len()).as_bytes()).await?;
                }
                Self::Closed | Self::Web(_) => {}
            }
        }
        match self {
            Self::Tcp(stream) => stream.flush().await,
            _ => Ok(()),
        }
    }

    async fn post(
        &mut self,
        webhook: &str,
        headers: &BTreeMap<String, Secret>,
        records: &[String],
    ) -> io::Result<()> {
        if !matches!(self, Self::Web(_)) {
            *self = Self::Web(web::client().map_err(|error| io::Error::other(web::cause(error)))?);
        }
        let Self::Web(client) = self else { return Ok(()) };
        let mut request = client.post(webhook).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(name, value.expose());
        }
        let body = format!("[{}]", records.join(","));
        let reply = request.body(body).send().await.map_err(|error| io::Error::other(web::cause(error)))?;
        match reply.status() {
            status if status.is_success() => Ok(()),
            status => Err(io::Error::other(format!("it answered HTTP {}", status.as_u16()))),
        }
    }
}
