//! The audit log: a line for each call and for each change of trust, separate from the log for people.
//!
//! Lines are JSON in append-only files. Each line holds the hash of the line before, so [`verify`] finds
//! lines that were edited, removed or moved. A call puts its entry into the queue of the writer thread
//! (`writer`) and does not wait, unless the settings require its line on disk first. A call reserves room in
//! the queue when it begins, so a call that is sent has its line however it ends, even if it is dropped.
//!
//! Knows nothing about the gateway: callers supply the content of each line.

mod export;
mod files;
mod line;
mod mask;
mod records;
mod verify;
mod writer;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use hmac::{Hmac, KeyInit, Mac};
use nonet_api::status::{AuditExportStatus, AuditStatus};
use nonet_base::{clock::unix_ms, text::hex};
use nonet_config::{AuditSettings, AuditSync, OnAuditFailure};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use sha2::Sha256;
use tokio::sync::{
    Notify,
    mpsc::{self, OwnedPermit},
    oneshot,
};

use self::{
    export::Exporter,
    writer::{Writer, WriterMessage},
};
pub use self::{
    files::chain_files,
    line::{AuditEntry, AuditedParams, ChainKey},
    mask::{MaskRules, masked},
    verify::{ChainBreak, ChainReport, each_line, has_line, verify},
};

/// The folder of the files in the state folder.
pub const FOLDER: &str = "audit";
/// How many calls in flight and unwritten lines the queue holds.
const QUEUE: usize = 16_384;
/// How many bytes of a hash of params are kept.
const PARAMS_HASH: usize = 16;
/// The largest part of the params that a line is made from, in bytes.
const MAX_PARAMS: usize = 16 << 10;
/// How long calls in flight and the last lines may delay the end.
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// How long a call in flight may take to end when the gateway stops, and how often that is checked.
const WIND_UP: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// What the gateway and the writer share.
struct Shared {
    settings: AuditSettings,
    /// The name of the gateway in its lines.
    gateway: String,
    /// Values that params must not show.
    secrets: ArcSwap<MaskRules>,
    failing: AtomicBool,
    error: Mutex<Option<String>>,
    /// Wakes the calls that wait for the disk when a write has failed.
    failed: Notify,
    /// Entries that had no room: those that no line has reported yet, and those already reported.
    lost: AtomicU64,
    lost_ever: AtomicU64,
    lines: AtomicU64,
    open_calls: AtomicUsize,
    stopping: AtomicBool,
    /// Whether the writer has ended, so that exporters send the last lines.
    written_out: AtomicBool,
    file: Mutex<Option<PathBuf>>,
    /// Where copies of the lines go.
    exports: Mutex<BTreeMap<String, AuditExportStatus>>,
    /// The exporters that have not ended.
    exporters: AtomicUsize,
}

impl Shared {
    /// Records why lines cannot be written. Returns whether the failure is new.
    fn fails(&self, error: String) -> bool {
        *self.error.lock() = Some(error);
        let is_new = !self.failing.swap(true, Ordering::AcqRel);
        self.failed.notify_waiters();
        is_new
    }

    /// Returns why lines cannot be written.
    fn failure(&self) -> String {
        self.error.lock().clone().unwrap_or_else(|| "it failed".into())
    }

    /// Records that lines are written. Returns whether that ends a failure.
    fn works_again(&self) -> bool {
        let was_failing = self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::AcqRel);
        if was_failing {
            *self.error.lock() = None;
        }
        was_failing
    }

    fn is_written_out(&self) -> bool {
        self.written_out.load(Ordering::Acquire)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// The audit log of a gateway.
pub struct Audit {
    shared: Arc<Shared>,
    sender: mpsc::Sender<WriterMessage>,
    key: Hmac<Sha256>,
}

impl Audit {
    /// Opens the log of a gateway. `state` is Nonet's state folder; `about` is what the first line says about
    /// the gateway. Writes nothing before [`Audit::begins`] or the first entry, so faults are reported only
    /// then, and to each call.
    pub fn open(
        settings: AuditSettings,
        state: Option<&Path>,
        about: Map<String, Value>,
    ) -> io::Result<Self> {
        let folder = settings.folder.clone().or_else(|| Some(state?.join(FOLDER)));
        // Without the folder's key, params of this run cannot be compared with params of other runs.
        let key = folder.as_deref().and_then(|folder| files::key(folder).ok());
        let key = key.unwrap_or_else(|| {
            let mut key = [0; files::KEY];
            key[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
            key[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
            key
        });
        let key = Hmac::new_from_slice(&key).map_err(io::Error::other)?;
        let gateway = hex(&uuid::Uuid::new_v4().as_bytes()[..4]);
        let shared = Arc::new(Shared {
            settings,
            gateway,
            secrets: ArcSwap::default(),
            failing: AtomicBool::new(false),
            error: Mutex::default(),
            failed: Notify::new(),
            lost: AtomicU64::new(0),
            lost_ever: AtomicU64::new(0),
            lines: AtomicU64::new(0),
            open_calls: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            written_out: AtomicBool::new(false),
            file: Mutex::default(),
            exports: Mutex::default(),
            exporters: AtomicUsize::new(0),
        });
        let (sender, messages) = mpsc::channel(QUEUE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let own = shared.clone();
        if let Some(folder) = folder.as_deref() {
            export_from(folder, &shared, &sender)?;
        }
        std::thread::Builder::new().name("nonet-audit".into()).spawn(move || {
            // Made outside of the runtime, as the exporter demands.
            let writer = Writer::new(own, folder, about);
            runtime.block_on(writer.run(messages)).tell();
        })?;
        Ok(Self { shared, sender, key })
    }

    /// Writes that the gateway has started.
    pub fn begins(&self) {
        let _ = self.sender.try_send(WriterMessage::Begin);
    }

    /// Replaces the values that params must not show.
    pub fn hide(&self, secrets: Vec<String>) {
        self.shared.secrets.store(Arc::new(MaskRules::new(secrets)));
    }

    /// Begins a call. Its line is written when the call ends or is dropped.
    pub fn call(&self, entry: AuditEntry, params: &Value) -> AuditedCall {
        self.shared.open_calls.fetch_add(1, Ordering::Relaxed);
        let permit = self.sender.clone().try_reserve_owned().ok();
        let entry = Box::new(AuditEntry { event: "call", params: Some(self.params(params)), ..entry });
        AuditedCall {
            shared: self.shared.clone(),
            sender: self.sender.clone(),
            permit,
            entry: Some(entry),
            at_ms: now(),
            began: Instant::now(),
        }
    }

    /// Returns the params of a call as its line shows them.
    pub fn params(&self, params: &Value) -> AuditedParams {
        /// A hash that can be written to.
        struct HmacWriter(Hmac<Sha256>);
        impl io::Write for HmacWriter {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.update(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut hashed = HmacWriter(self.key.clone());
        // Writing to a hash or to memory cannot fail.
        let _ = serde_json::to_writer(&mut hashed, params);
        let hash = hex(&hashed.0.finalize().into_bytes()[..PARAMS_HASH]);
        let text = self.shared.settings.params.then(|| {
            let mut text = params.to_string();
            text.truncate(text.floor_char_boundary(MAX_PARAMS));
            text
        });
        AuditedParams { hash, text }
    }

    /// Writes an event that is not a call.
    pub fn event(&self, event: &'static str, about: Value) {
        let about = match about {
            Value::Object(about) => about,
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        let entry = Box::new(AuditEntry { event, about, ..AuditEntry::default() });
        if self.sender.try_send(WriterMessage::Line { at_ms: now(), entry, written: None }).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a call may be sent.
    ///
    /// # Errors
    ///
    /// Why lines cannot be written, if the settings refuse calls in that case.
    pub fn admits(&self) -> Result<(), String> {
        if self.shared.settings.on_failure == OnAuditFailure::Continue {
            return Ok(());
        }
        if self.shared.failing.load(Ordering::Acquire) {
            return Err(self.shared.failure());
        }
        match self.sender.capacity() {
            0 => Err(format!("{QUEUE} lines are waiting to be written")),
            _ => Ok(()),
        }
    }

    /// Returns the state of the log.
    pub fn status(&self) -> AuditStatus {
        let shared = &self.shared;
        AuditStatus {
            state: if shared.failing.load(Ordering::Relaxed) { "failing" } else { "ok" }.into(),
            file: shared.file.lock().clone(),
            lines: shared.lines.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed) + shared.lost_ever.load(Ordering::Relaxed),
            error: shared.error.lock().clone(),
            exports: shared.exports.lock().values().cloned().collect(),
        }
    }

    /// Ends the log. Waits briefly for calls in flight, and until the last lines are on disk.
    pub async fn stop(&self) {
        let began = Instant::now();
        while self.shared.open_calls.load(Ordering::Relaxed) > 0 && began.elapsed() < WIND_UP {
            tokio::time::sleep(LOOK).await;
        }
        if self.shared.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        let (tell, told) = oneshot::channel();
        let stopped = async {
            if self.sender.send(WriterMessage::Stop(tell)).await.is_ok() {
                let _ = told.await;
            }
        };
        if tokio::time::timeout(STOP_LIMIT, stopped).await.is_err() {
            tracing::error!("the last lines of the audit log were not written in time");
        }
        self.shared.written_out.store(true, Ordering::Release);
        let began = Instant::now();
        while self.shared.exporters.load(Ordering::Acquire) > 0 && began.elapsed() < STOP_LIMIT {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Ends the exporters of a log that is dropped without having been stopped.
impl Drop for Audit {
    fn drop(&mut self) {
        self.shared.written_out.store(true, Ordering::Release);
    }
}

/// Starts the exporters of a folder, on one thread.
fn export_from(folder: &Path, shared: &Arc<Shared>, sender: &mpsc::Sender<WriterMessage>) -> io::Result<()> {
    let exporters: Vec<Exporter> = shared
        .settings
        .export
        .iter()
        .map(|(name, settings)| Exporter::new(name, settings, shared, folder, sender))
        .collect();
    if exporters.is_empty() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    shared.exporters.store(exporters.len(), Ordering::Release);
    let shared = shared.clone();
    std::thread::Builder::new().name("nonet-audit-export".into()).spawn(move || {
        let all = exporters.into_iter().map(|exporter| async {
            exporter.run().await;
            shared.exporters.fetch_sub(1, Ordering::AcqRel);
        });
        runtime.block_on(futures::future::join_all(all));
    })?;
    Ok(())
}

/// A call in flight that will have its line.
pub struct AuditedCall {
    shared: Arc<Shared>,
    sender: mpsc::Sender<WriterMessage>,
    permit: Option<OwnedPermit<WriterMessage>>,
    entry: Option<Box<AuditEntry>>,
    at_ms: u64,
    began: Instant,
}

impl std::fmt::Debug for AuditedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditedCall").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl AuditedCall {
    /// Returns the line's content so far.
    pub fn entry(&mut self) -> Option<&mut AuditEntry> {
        self.entry.as_deref_mut()
    }

    /// Drops the line of the call: it turned out not to be a call, or something else writes its line.
    pub fn forget(mut self) {
        self.entry = None;
    }

    /// Ends the call with this outcome. Waits until the line is on disk if the settings require that, but not
    /// while lines cannot be written.
    ///
    /// # Errors
    ///
    /// Why the line cannot be written, if the settings allow no call without a line.
    pub async fn end(mut self, outcome: &'static str) -> Result<(), String> {
        let shared = self.shared.clone();
        let failed = shared.failed.notified();
        tokio::pin!(failed);
        // From here on, a failure is noticed.
        failed.as_mut().enable();
        let waits = shared.settings.sync == AuditSync::Always;
        let (written, receipt) = if waits { Some(oneshot::channel()).unzip() } else { (None, None) };
        let Some(message) = self.message(outcome, written) else { return Ok(()) };
        let is_sent = match self.permit.take() {
            Some(permit) => {
                permit.send(message);
                true
            }
            // The queue was full when the call began.
            None => self.sender.try_send(message).is_ok(),
        };
        if !is_sent {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        let is_written = match receipt {
            None => is_sent,
            Some(_) if shared.failing.load(Ordering::Acquire) => false,
            Some(receipt) => tokio::select! {
                biased;
                written = receipt => written.is_ok(),
                () = failed => false,
            },
        };
        match shared.settings.on_failure {
            OnAuditFailure::Refuse if !is_written => Err(shared.failure()),
            OnAuditFailure::Refuse | OnAuditFailure::Continue => Ok(()),
        }
    }

    fn message(
        &mut self,
        outcome: &'static str,
        written: Option<oneshot::Sender<()>>,
    ) -> Option<WriterMessage> {
        let mut entry = self.entry.take()?;
        entry.outcome = Some(outcome);
        entry.elapsed_us = u64::try_from(self.began.elapsed().as_micros()).ok();
        Some(WriterMessage::Line { at_ms: self.at_ms, entry, written })
    }
}

impl Drop for AuditedCall {
    fn drop(&mut self) {
        // The client has left, or the call has panicked.
        let outcome = if std::thread::panicking() { "internal" } else { "cancelled" };
        if let Some(message) = self.message(outcome, None) {
            let lost = match self.permit.take() {
                Some(permit) => {
                    permit.send(message);
                    false
                }
                None => self.sender.try_send(message).is_err(),
            };
            if lost {
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.shared.open_calls.fetch_sub(1, Ordering::Relaxed);
    }
}

fn now() -> u64 {
    unix_ms(nonet_base::clock::system_time())
}

#[cfg(test)]
mod tests;
