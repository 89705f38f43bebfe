//! Where the log goes, and the traces.

use std::{
    ffi::OsStr,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use anyhow::Context;
use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::{EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt};

use super::args::{Cli, Command};
#[cfg(not(feature = "otel"))]
use crate::trace;
#[cfg(feature = "otel")]
use crate::trace::{Export, is_ours};

/// How many days of a log file are kept.
const LOG_FILES: usize = 7;

/// The log of this process. What waits to be written or sent goes out when it is dropped.
pub(super) struct Log {
    // Before the writer: what it says at the end is still written.
    #[cfg(feature = "otel")]
    _traces: Option<Export>,
    _writer: WorkerGuard,
}

/// Logs to stderr or a file, from a thread of its own: a client that does not read stderr must not stop the gateway. What it
/// cannot take is dropped.
pub(super) fn start(cli: &Cli, serves: bool) -> anyhow::Result<Log> {
    // `nonet logs` reads that file.
    let file = cli.log_file.as_deref().filter(|_| !matches!(cli.command, Some(Command::Logs { .. })));
    let asked = cli.log.as_deref().filter(|asked| !asked.is_empty());
    let filter = filter(asked, serves, file.is_some());
    let (writer, guard) = writer(file)?;
    let coloured = file.is_none() && std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(coloured);
    Ok(if cli.log_json { install(lines.json(), filter, guard) } else { install(lines, filter, guard) })
}

#[cfg(not(feature = "otel"))]
fn install(lines: impl Layer<Registry> + Send + Sync, filter: EnvFilter, writer: WorkerGuard) -> Log {
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    if trace::wanted(|name| std::env::var(name).ok()) {
        tracing::info!(
            "no traces are sent to OTEL_EXPORTER_OTLP_ENDPOINT: this build lacks the feature `otel`"
        );
    }
    Log { _writer: writer }
}

#[cfg(feature = "otel")]
fn install(lines: impl Layer<Registry> + Send + Sync, filter: EnvFilter, writer: WorkerGuard) -> Log {
    use tracing_subscriber::filter::{FilterExt, filter_fn};

    let (traces, fault) = match Export::start() {
        Ok(traces) => (traces, None),
        Err(fault) => (None, Some(fault)),
    };
    let _ = match &traces {
        // Only spans go to the collector, and only to the collector.
        Some(traces) => tracing_subscriber::registry()
            .with(lines.with_filter(filter.and(filter_fn(|metadata| !is_ours(metadata)))))
            .with(traces.layer().with_filter(filter_fn(is_ours)))
            .try_init(),
        None => tracing_subscriber::registry().with(lines).with(filter).try_init(),
    };
    if let Some(fault) = fault {
        tracing::warn!("no traces are sent: {fault:#}");
    }
    Log { _traces: traces, _writer: writer }
}

/// What is logged.
fn filter(asked: Option<&str>, serves: bool, to_file: bool) -> EnvFilter {
    // rmcp's transport log repeats the state of a server. A file has room for servers' stderr.
    let default = match (serves, to_file) {
        (true, true) => "warn,nonet=info,nonet::stderr=debug,rmcp::transport=off",
        (true, false) => "warn,nonet=info,rmcp::transport=off",
        (false, _) => "error,rmcp::transport=off",
    };
    // A bare level is for Nonet: libraries at `debug` log whole messages, secrets included.
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    let own = asked.filter(|filter| levels.contains(&filter.to_lowercase().as_str()));
    let own = own.map(|level| format!("warn,nonet={level},rmcp::transport=off"));
    // It would show codes and tokens.
    let asked = asked.map(|asked| format!("{asked},rmcp::transport::auth=info"));
    let filter = own.as_deref().or(asked.as_deref()).unwrap_or(default);
    filter.parse().unwrap_or_else(|error| {
        eprintln!("nonet: invalid log filter `{filter}` ({error}); using `{default}`");
        EnvFilter::new(default)
    })
}

/// Where a log file is, which has the day of its lines in the middle of its name: `PREFIX.2026-01-31.SUFFIX`.
pub(super) struct Files {
    pub folder: PathBuf,
    pub prefix: String,
    pub suffix: String,
}

impl Files {
    /// The files of `--log-file FILE`.
    pub fn of(file: &Path) -> Self {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = |part: Option<&OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        Self {
            folder: folder.into(),
            prefix: name(file.file_stem()).unwrap_or_else(|| "nonet".into()),
            suffix: name(file.extension()).unwrap_or_else(|| "log".into()),
        }
    }
}

fn writer(file: Option<&Path>) -> anyhow::Result<(NonBlocking, WorkerGuard)> {
    let Some(file) = file else { return Ok(tracing_appender::non_blocking(std::io::stderr())) };
    let Files { folder, prefix, suffix } = Files::of(file);
    let files = tracing_appender::rolling::Builder::new()
        .rotation(tracing_appender::rolling::Rotation::DAILY)
        .filename_prefix(prefix)
        .filename_suffix(suffix)
        .max_log_files(LOG_FILES)
        .build(folder)
        .with_context(|| format!("cannot write `--log-file {}`", file.display()))?;
    Ok(tracing_appender::non_blocking(files))
}
