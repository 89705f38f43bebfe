//! The writer thread. Calls send it entries; it numbers, chains, writes and syncs them, and rotates and
//! removes files.
//!
//! Lines that cannot be written are kept and retried every second, in order; meanwhile the queue fills up.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use nonet_base::{clock::unix_ms, files::private_folder, text::clip};
use nonet_config::{AuditSync, OnAuditFailure, Secret};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{
    Shared,
    files::{self, ChainEnd, chain_files, path_of},
    line::{self, AuditEntry, ChainHead, ChainKey},
    mask,
};
use crate::trace::AuditExport;

/// How many messages are taken at once.
const BATCH: usize = 1_024;
/// How many bytes are written at once, plus the last line: a file may end in between.
const CHUNK: usize = 64 << 10;
/// How long entries are collected. Waking the thread for each entry would cost each call a system call.
const COLLECT: Duration = Duration::from_millis(20);
/// How often written lines are synced to disk.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How soon a failed write is retried.
const AGAIN: Duration = Duration::from_secs(1);
/// The number of files that share the budget, and the largest file in bytes.
const FILES: u64 = 8;
const MAX_FILE: u64 = 64 << 20;
/// How much of a torn line is shown, in characters.
const MAX_TORN: usize = 2_000;

/// A message to the thread.
pub(super) enum WriterMessage {
    /// An entry, its time, and the sender that is notified once the line is on disk.
    Line { at_ms: u64, entry: Box<AuditEntry>, written: Option<oneshot::Sender<()>> },
    /// Begin the log even if no entry follows.
    Begin,
    /// Stop, and notify the sender once everything is on disk.
    Stop(oneshot::Sender<()>),
}

/// A chain that this gateway writes.
struct Chain {
    number: u32,
    /// Held as long as the gateway writes to the chain.
    _lock: File,
    head: ChainHead,
    file: File,
    path: PathBuf,
    /// The length of the file's whole lines.
    len: u64,
    /// Whether a failed write may have left a torn line behind `len`.
    is_dirty: bool,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    folder: Option<PathBuf>,
    /// What the first line says about the gateway.
    about: Map<String, Value>,
    key: ChainKey,
    chain: Option<Chain>,
    /// Entries without a number.
    entries: VecDeque<(u64, Box<AuditEntry>)>,
    /// Numbered lines that are not in the file yet, and the number of the first one.
    pending: (Vec<u8>, u64),
    /// Callers that wait until their lines are on disk.
    waiting: Vec<oneshot::Sender<()>>,
    /// When the first line was written that is not synced yet.
    unsynced: Option<Instant>,
    export: Option<AuditExport>,
}

/// A writer that has written everything. Exports the remaining lines when it is dropped, outside the runtime.
pub(super) struct StoppedWriter {
    _export: Option<AuditExport>,
    stopped: Option<oneshot::Sender<()>>,
}

impl StoppedWriter {
    /// Notifies the caller that stopped the writer.
    pub(super) fn tell(mut self) {
        let stopped = self.stopped.take();
        drop(self);
        if let Some(tell) = stopped {
            let _ = tell.send(());
        }
    }
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, folder: Option<PathBuf>, about: Map<String, Value>) -> Self {
        let key = ChainKey::new(shared.settings.key.as_ref().map(Secret::expose));
        Self {
            shared,
            folder,
            about,
            key,
            chain: None,
            entries: VecDeque::new(),
            pending: (Vec::new(), 0),
            waiting: Vec::new(),
            unsynced: None,
            export: AuditExport::start(),
        }
    }

    /// Writes until the gateway stops or all senders are gone.
    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<WriterMessage>) -> StoppedWriter {
        let mut stopped = None;
        let mut received = Vec::with_capacity(BATCH);
        while stopped.is_none() {
            if !self.receive(&mut messages, &mut received).await {
                break;
            }
            for message in received.drain(..) {
                match message {
                    WriterMessage::Line { at_ms, entry, written } => {
                        self.entries.push_back((at_ms, entry));
                        self.waiting.extend(written);
                    }
                    WriterMessage::Begin => {}
                    WriterMessage::Stop(tell) => stopped = Some(tell),
                }
            }
            if stopped.is_some() {
                // Messages behind the stop belong to calls that have ended meanwhile.
                while let Ok(WriterMessage::Line { at_ms, entry, written }) = messages.try_recv() {
                    self.entries.push_back((at_ms, entry));
                    self.waiting.extend(written);
                }
                let open = self.shared.open_calls.load(Ordering::Relaxed);
                let about = if open > 0 { json!({ "open_calls": open }) } else { json!({}) };
                self.entries.push_back((now(), event("stop", about)));
            }
            self.write_all(stopped.is_some()).await;
        }
        if let Some(chain) = &self.chain {
            let _ = chain.file.sync_all();
        }
        StoppedWriter { _export: self.export.take(), stopped }
    }

    /// Waits for messages, and syncs lines when that is due. Returns whether more messages may come.
    async fn receive(
        &mut self,
        from: &mut mpsc::Receiver<WriterMessage>,
        into: &mut Vec<WriterMessage>,
    ) -> bool {
        loop {
            let unsynced = self.unsynced.filter(|_| self.shared.settings.sync == AuditSync::Interval);
            let left = unsynced.map(|since| SYNC_EVERY.saturating_sub(since.elapsed()));
            let received = match left {
                // Sync even if messages never pause.
                Some(Duration::ZERO) => {
                    self.sync();
                    continue;
                }
                Some(left) => match tokio::time::timeout(left, from.recv_many(into, BATCH)).await {
                    Ok(received) => received,
                    Err(_) => {
                        self.sync();
                        continue;
                    }
                },
                None => from.recv_many(into, BATCH).await,
            };
            if received == 0 {
                return false;
            }
            if self.shared.settings.sync != AuditSync::Always && received < BATCH {
                tokio::time::sleep(COLLECT).await;
                while into.len() < BATCH
                    && let Ok(message) = from.try_recv()
                {
                    into.push(message);
                }
            }
            return true;
        }
    }

    /// Writes all entries, and retries until that succeeds. `once`: do not retry, because the gateway stops.
    async fn write_all(&mut self, once: bool) {
        loop {
            match self.write() {
                Ok(()) => {
                    if self.shared.works_again() {
                        tracing::info!("the audit log is written again");
                    }
                    if self.entries.is_empty() {
                        return;
                    }
                }
                Err(error) => {
                    if self.shared.fails(error.to_string()) {
                        let then = match self.shared.settings.on_failure {
                            OnAuditFailure::Continue => "calls go on, and their lines wait in memory",
                            OnAuditFailure::Refuse => "calls are refused until it can be written",
                        };
                        tracing::error!(%error, "the audit log cannot be written; {then}");
                    }
                    // Waiting callers get their answers now; the lines are written as soon as possible.
                    self.waiting.clear();
                    if once || self.shared.is_stopping() {
                        let lines =
                            self.entries.len() + self.pending.0.split(|byte| *byte == b'\n').count() - 1;
                        if lines > 0 {
                            tracing::error!(lines, "lines of the audit log are lost");
                        }
                        return;
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.open()?;
        let lost = self.shared.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.shared.lost_ever.fetch_add(lost, Ordering::Relaxed);
            let about = json!({ "lines": lost, "why": "the log could not be written for too long" });
            self.entries.push_back((now(), event("lost", about)));
        }
        let Some(chain) = &mut self.chain else { return Ok(()) };
        if self.pending.0.is_empty() {
            self.pending.1 = chain.head.seq + 1;
        }
        let max = self.shared.settings.max_bytes;
        let folder = chain.path.parent().map(Path::to_path_buf).unwrap_or_default();
        let max_file = (max / FILES).min(MAX_FILE);
        let is_gone = !chain.path.exists();
        // Lines that have their numbers still go to the file that they were numbered for.
        let is_full = self.pending.0.is_empty() && chain.len > 0 && chain.len + CHUNK as u64 > max_file;
        if is_full || is_gone {
            let mut about = json!({ "chains": files::heads(&folder, chain.number, &self.key) });
            let event_name = if is_gone { "file_missing" } else { "file" };
            about["file"] = name_of(&chain.path).into();
            if !is_gone && self.shared.settings.sync != AuditSync::Never {
                chain.file.sync_data()?;
            }
            chain.go_on(path_of(&folder, chain.number, self.pending.1))?;
            *self.shared.file.lock() = Some(chain.path.clone());
            self.entries.push_front((now(), event(event_name, about)));
        }
        let gateway = &self.shared.gateway;
        while self.pending.0.len() < CHUNK
            && let Some((at_ms, mut entry)) = self.entries.pop_front()
        {
            if let Some(text) = entry.params.as_mut().and_then(|params| params.text.as_mut()) {
                *text = mask::masked(text, &self.shared.secrets.load(), mask::MAX_TEXT);
            }
            line::write(&mut self.pending.0, &mut chain.head, at_ms, gateway, &entry, &self.key);
        }
        if self.pending.0.is_empty() {
            return Ok(());
        }
        chain.append(&self.pending.0)?;
        self.unsynced.get_or_insert_with(Instant::now);
        let written = std::mem::take(&mut self.pending.0);
        let lines = written.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        self.shared.lines.fetch_add(lines.clone().count() as u64, Ordering::Relaxed);
        if let Some(export) = &self.export {
            lines.for_each(|line| export.emit(&String::from_utf8_lossy(line)));
        }
        if is_full {
            self.remove_old(&folder, max, max_file)?;
        }
        if !self.entries.is_empty() {
            return Ok(());
        }
        if self.shared.settings.sync == AuditSync::Always {
            if let Some(chain) = &self.chain {
                chain.file.sync_data()?;
            }
            self.unsynced = None;
        }
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(());
        }
        Ok(())
    }

    /// Removes the oldest files of the chain until there is room for another file.
    fn remove_old(&mut self, folder: &Path, max: u64, max_file: u64) -> io::Result<()> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let mut own = chain_files(folder)?;
        own.retain(|file| file.chain == chain.number);
        let sizes: Vec<u64> =
            own.iter().map(|file| fs::metadata(&file.path).map_or(0, |data| data.len())).collect();
        let mut sum: u64 = sizes.iter().sum();
        for (file, size) in own.iter().zip(sizes) {
            if sum + max_file <= max || file.path == chain.path {
                return Ok(());
            }
            let bytes = fs::read(&file.path)?;
            let last =
                bytes.split(|byte| *byte == b'\n').rev().find_map(|line| line::read(line, &self.key).ok());
            let (last, hash) = last.map(|place| (place.seq, place.hash)).unzip();
            let about =
                json!({ "file": name_of(&file.path), "first": file.first, "last": last, "hash": hash });
            let mut line = Vec::new();
            let before = chain.head.clone();
            let entry = event("removed", about);
            line::write(&mut line, &mut chain.head, now(), &self.shared.gateway, &entry, &self.key);
            if let Err(error) = chain.append(&line) {
                chain.head = before;
                return Err(error);
            }
            // The chain records the removal first: a crash in between leaves too much rather than too little.
            chain.file.sync_data()?;
            self.shared.lines.fetch_add(1, Ordering::Relaxed);
            fs::remove_file(&file.path)?;
            sum -= size;
        }
        Ok(())
    }

    fn sync(&mut self) {
        self.unsynced = None;
        let synced = self.chain.as_ref().map_or(Ok(()), |chain| chain.file.sync_data());
        if let Err(error) = synced {
            tracing::error!(%error, "the audit log cannot be synced to disk");
        }
    }

    /// Takes a chain and finds its end, on the first call.
    fn open(&mut self) -> io::Result<()> {
        if self.chain.is_some() {
            return Ok(());
        }
        let folder = self.folder.clone().ok_or_else(|| {
            io::Error::other("there is no state folder for it; set `folder` in [audit] of servers.toml")
        })?;
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", folder.display()));
        let (number, lock, end) = files::take_chain(&folder, &self.key).map_err(named)?;
        let ChainEnd { head, file, torn, lacks_newline, is_damaged, .. } = end;
        let (path, len) = file.unwrap_or_else(|| (path_of(&folder, number, head.seq + 1), 0));
        let file = files::open(&path).map_err(named)?;
        let mut chain = Chain { number, _lock: lock, head, file, path, len, is_dirty: torn.is_some() };
        if lacks_newline {
            chain.append(b"\n")?;
        }
        files::sync_folder(&folder);
        let mut about = self.about.clone();
        about.insert("chains".into(), files::heads(&folder, number, &self.key));
        if let Some(torn) = torn {
            let text = clip(&String::from_utf8_lossy(&torn), MAX_TORN);
            about.insert("torn".into(), json!({ "bytes": torn.len(), "text": text }));
        }
        if is_damaged {
            about.insert("damaged".into(), true.into());
            tracing::error!(file = %chain.path.display(), "the end of the audit log is damaged; see `nonet audit verify`");
        }
        *self.shared.file.lock() = Some(chain.path.clone());
        self.chain = Some(chain);
        self.entries.push_front((now(), event("start", Value::Object(about))));
        Ok(())
    }
}

impl Chain {
    /// Appends whole lines to the file, or nothing.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_dirty {
            // Some systems do not truncate a file that is open only for appending.
            OpenOptions::new().write(true).open(&self.path)?.set_len(self.len)?;
        }
        self.is_dirty = true;
        self.file.write_all(bytes)?;
        self.is_dirty = false;
        self.len += length(bytes);
        Ok(())
    }

    /// Continues in another file.
    fn go_on(&mut self, path: PathBuf) -> io::Result<()> {
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        private_folder(&folder)?;
        // The lock may be gone with the files; another gateway must not take the chain.
        if let Some(lock) = files::lock_again(&folder, self.number) {
            self._lock = lock;
        }
        self.file = files::open(&path)?;
        files::sync_folder(&folder);
        (self.path, self.len, self.is_dirty) = (path, 0, true);
        Ok(())
    }
}

pub(super) fn event(event: &'static str, about: Value) -> Box<AuditEntry> {
    let about = match about {
        Value::Object(about) => about,
        _ => Map::new(),
    };
    Box::new(AuditEntry { event, about, ..AuditEntry::default() })
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn now() -> u64 {
    unix_ms(nonet_base::clock::system_time())
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
