//! Where the log and the traces go.

use std::{
    borrow::Cow,
    ffi::OsStr,
    fmt,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context;
use nonet_base::{clock, text};
use serde_json::json;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use super::args::{Cli, Command};
#[cfg(not(feature = "otel"))]
use nonet_parts::trace;
#[cfg(feature = "otel")]
use nonet_parts::trace::{Export, is_ours};

/// How long to gather log lines after a write.
const PAUSE: Duration = Duration::from_millis(20);
/// How many bytes to gather.
const GATHERED: usize = 64 << 10;
/// How many entries wait for the writing thread; their places are made at the start. What comes beyond is
/// dropped, and told once there is room.
const MOST_WAITING: usize = 16_384;
/// The room for a line, in bytes, before it has to grow.
const USUAL: usize = 256;
/// How many days of log files to keep.
const LOG_FILES: usize = 7;

/// The log of this process. Dropping it flushes pending lines and spans.
pub(super) struct Log {
    // Declared before the writer: its last messages are still written.
    #[cfg(feature = "otel")]
    _traces: Option<Export>,
    _writer: WorkerGuard,
}

/// Logs to stderr or a file, from its own thread: a client that does not read stderr must not stop the
/// gateway.
pub(super) fn start(cli: &Cli, serves: bool) -> anyhow::Result<Log> {
    // `nonet logs` reads that file.
    let file = cli.log_file.as_deref().filter(|_| !matches!(cli.command, Some(Command::Logs { .. })));
    let asked = cli.log.as_deref().filter(|asked| !asked.is_empty());
    let filter = filter(asked, serves, file.is_some());
    let coloured = file.is_none() && std::io::stderr().is_terminal();
    let form = match (cli.log_json, coloured) {
        (true, _) => Form::Json,
        (false, true) => Form::Coloured,
        (false, false) => Form::Plain,
    };
    let (writer, guard) = writer(file, serves, form)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(coloured);
    let log = match form {
        Form::Json => install(lines.json(), filter, guard),
        Form::Coloured => install(lines, filter, guard),
        Form::Plain => install(lines.event_format(PlainFormat), filter, guard),
    };
    log_panics();
    Ok(log)
}

/// Logs panics, in whatever task or thread: a log file and a log of JSON have them too. A message that was
/// put together may quote what passes through, which no log does. Without a log, or where a backtrace is
/// asked for, panics go to stderr as usual.
fn log_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let constant = panic.payload().downcast_ref::<&'static str>();
        let message = constant.unwrap_or(&"with RUST_BACKTRACE=1, the message is on stderr");
        tracing::error!("a fault in Nonet itself at {place}, please report it: {message}");
        if !tracing::enabled!(tracing::Level::ERROR) || std::env::var_os("RUST_BACKTRACE").is_some() {
            usual(panic);
        }
    }));
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
        // Only spans go to the collector, and they go nowhere else.
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

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    /// With escape sequences for colours.
    Coloured,
    Json,
}

/// Formats entries like `tracing_subscriber`'s default without colours, at a fraction of its cost, which
/// every call pays.
struct PlainFormat;

impl<S, N> FormatEvent<S, N> for PlainFormat
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'fields> FormatFields<'fields> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        use fmt::Write;

        // Put together here: each write to the writer is a call that cannot be inlined.
        let mut line = String::with_capacity(USUAL);
        let metadata = event.metadata();
        write!(line, "{}", humantime::format_rfc3339_micros(clock::system_time()))?;
        line.push_str(match *metadata.level() {
            Level::ERROR => " ERROR ",
            Level::WARN => "  WARN ",
            Level::INFO => "  INFO ",
            Level::DEBUG => " DEBUG ",
            Level::TRACE => " TRACE ",
        });
        let mut spans = context.event_scope().into_iter().flat_map(|scope| scope.from_root()).peekable();
        let is_in_spans = spans.peek().is_some();
        for span in spans {
            line.push_str(span.name());
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>().filter(|all| !all.is_empty())
            {
                write!(line, "{{{fields}}}")?;
            }
            line.push(':');
        }
        line.push_str(if is_in_spans { " " } else { "" });
        line.push_str(metadata.target());
        line.push(':');
        event.record(&mut PlainFields(&mut line));
        line.push('\n');
        writer.write_str(&line)
    }
}

/// Writes the fields of an entry, each after a space.
struct PlainFields<'l>(&'l mut String);

impl PlainFields<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.begin(field);
        // Only a value that fails to be shown makes this fail, and then the rest of the line stays.
        let _ = fmt::Write::write_fmt(self.0, value);
    }

    fn begin(&mut self, field: &Field) {
        self.0.push(' ');
        if field.name() != "message" {
            self.0.push_str(field.name());
            self.0.push('=');
        }
    }
}

impl Visit for PlainFields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let is_message = field.name() == "message";
        let is_plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        match is_message || value.bytes().all(is_plain) {
            // As `Debug` writes it, which looks at each character.
            true => {
                self.begin(field);
                let quote = if is_message { "" } else { "\"" };
                self.0.extend([quote, value, quote]);
            }
            false => self.write(field, format_args!("{value:?}")),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.begin(field);
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, format_args!("{value:?}"));
    }
}

/// The name of this replica, as JSON, once known.
static REPLICA: OnceLock<String> = OnceLock::new();

/// Adds this replica's name to each JSON entry from now on.
pub(super) fn of_replica(name: &str) {
    let _ = REPLICA.set(serde_json::Value::from(name).to_string());
}

/// Adds the name of its replica to a JSON entry.
fn with_replica(entry: &str, replica: Option<&String>) -> String {
    match (replica, entry.strip_prefix('{')) {
        (Some(replica), Some(rest)) => format!("{{\"replica\":{replica},{rest}"),
        _ => entry.into(),
    }
}

/// Writes each entry as one line, whatever servers and clients put into it: a name with a line end must not
/// forge an entry, nor control a terminal that shows the log.
struct OneLine<W> {
    writer: W,
    form: Form,
    dropped: DroppedEntries,
}

/// How many entries found no place in the queue, and how many of them the log has told.
#[derive(Default)]
struct DroppedEntries {
    counter: Arc<OnceLock<ErrorCounter>>,
    told: usize,
}

impl DroppedEntries {
    /// Returns an entry about those that were dropped since the last one.
    fn entry(&mut self, form: Form) -> Option<String> {
        let all = self.counter.get().map_or(0, ErrorCounter::dropped_lines);
        let new = all - std::mem::replace(&mut self.told, all);
        if new == 0 {
            return None;
        }
        let message =
            format!("{new} log entries were dropped: they came faster than the log could be written");
        let time = humantime::format_rfc3339_micros(clock::system_time()).to_string();
        Some(match form {
            Form::Json => {
                let fields = json!({ "message": message });
                json!({ "timestamp": time, "level": "WARN", "fields": fields, "target": "nonet" }).to_string()
            }
            Form::Plain | Form::Coloured => format!("{time}  WARN nonet: {message}"),
        })
    }
}

impl<W: Write> Write for OneLine<W> {
    /// The log passes each entry in one piece.
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        // `from_utf8_lossy` takes several times as long where there is no error.
        let mut text =
            std::str::from_utf8(entry).map_or_else(|_| String::from_utf8_lossy(entry), Cow::Borrowed);
        if self.form == Form::Json {
            text = with_replica(&text, REPLICA.get()).into();
        }
        self.writer.write_all(in_one_line(&text, self.form).as_bytes())?;
        Ok(entry.len())
    }

    /// The log's thread calls this when its queue is empty.
    fn flush(&mut self) -> io::Result<()> {
        if let Some(entry) = self.dropped.entry(self.form) {
            self.write_all(entry.as_bytes())?;
        }
        self.writer.flush()
    }
}

/// Formats an entry as one line.
fn in_one_line(entry: &str, form: Form) -> Cow<'_, str> {
    let whole = entry;
    let entry = entry.strip_suffix('\n').unwrap_or(entry);
    let mut line = match form {
        Form::Plain if whole.len() > entry.len() && text::is_one_line(entry) => return Cow::Borrowed(whole),
        Form::Plain => text::line(entry, usize::MAX),
        Form::Coloured => {
            let mut pieces = Vec::new();
            // The log itself has already escaped other escape sequences.
            for (at, piece) in entry.split("\u{1b}[").enumerate() {
                let end = piece.find(|c: char| !c.is_ascii_digit() && c != ';').filter(|_| at > 0);
                match end.filter(|end| piece[*end..].starts_with('m')) {
                    Some(end) => {
                        let (colour, rest) = piece.split_at(end + 1);
                        pieces.push(format!("\u{1b}[{colour}{}", text::line(rest, usize::MAX)));
                    }
                    None => pieces.push(text::line(piece, usize::MAX)),
                }
            }
            pieces.concat()
        }
        Form::Json => {
            let mut line = String::with_capacity(entry.len());
            let mut done = 0;
            for (at, c, _) in text::hidden(entry) {
                line.push_str(&entry[done..at]);
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().for_each(|unit| line.push_str(&format!("\\u{unit:04x}")));
                done = at + c.len_utf8();
            }
            line + &entry[done..]
        }
    };
    line.push('\n');
    line.into()
}

/// Returns what to log.
fn filter(asked: Option<&str>, serves: bool, to_file: bool) -> EnvFilter {
    // rmcp's transport log repeats servers' states. A file also has room for servers' stderr.
    let default = match (serves, to_file) {
        (true, true) => "warn,nonet=info,nonet::stderr=debug,rmcp::transport=off",
        (true, false) => "warn,nonet=info,rmcp::transport=off",
        (false, _) => "error,rmcp::transport=off",
    };
    // A level without a target applies to Nonet: libraries at `debug` log whole messages, secrets included.
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    let own = asked.filter(|filter| levels.contains(&filter.to_lowercase().as_str()));
    let own = own.map(|level| format!("warn,nonet={level},rmcp::transport=off"));
    // Debug logging of this target would show codes and tokens.
    let asked = asked.map(|asked| format!("{asked},rmcp::transport::auth=info"));
    let filter = own.as_deref().or(asked.as_deref()).unwrap_or(default);
    filter.parse().unwrap_or_else(|error| {
        eprintln!("nonet: invalid log filter `{filter}` ({error}); using `{default}`");
        EnvFilter::new(default)
    })
}

/// Where log files are. Their names contain the day: `PREFIX.2026-01-31.SUFFIX`.
pub(super) struct Files {
    pub folder: PathBuf,
    pub prefix: String,
    pub suffix: String,
}

impl Files {
    /// Returns the files of `--log-file FILE`.
    pub(super) fn of(file: &Path) -> Self {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = |part: Option<&OsStr>| part.map(|part| part.to_string_lossy().into_owned());
        Self {
            folder: folder.into(),
            prefix: name(file.file_stem()).unwrap_or_else(|| "nonet".into()),
            suffix: name(file.extension()).unwrap_or_else(|| "log".into()),
        }
    }
}

/// Writes the lines within [`PAUSE`] in one piece: waking the writing thread for each line would cost a call
/// more than the line itself.
struct LineBatch<W: Write> {
    to: BufWriter<W>,
    /// Whether something was written since the last pause.
    is_new: bool,
}

impl<W: Write> LineBatch<W> {
    fn new(to: W) -> Self {
        Self { to: BufWriter::with_capacity(GATHERED, to), is_new: false }
    }
}

impl<W: Write> Write for LineBatch<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.is_new = true;
        self.to.write(lines)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()?;
        if std::mem::take(&mut self.is_new) {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Starts a writing thread. A short command does not wait for a pause.
fn thread(to: impl Write + Send + 'static, serves: bool, form: Form) -> (NonBlocking, WorkerGuard) {
    let queue = NonBlockingBuilder::default().buffered_lines_limit(MOST_WAITING);
    let dropped = DroppedEntries::default();
    let counter = dropped.counter.clone();
    let (entries, guard) = match serves {
        true => queue.finish(OneLine { writer: LineBatch::new(to), form, dropped }),
        false => queue.finish(OneLine { writer: to, form, dropped }),
    };
    let _ = counter.set(entries.error_counter());
    (entries, guard)
}

fn writer(file: Option<&Path>, serves: bool, form: Form) -> anyhow::Result<(NonBlocking, WorkerGuard)> {
    let Some(file) = file else { return Ok(thread(io::stderr(), serves, form)) };
    let Files { folder, prefix, suffix } = Files::of(file);
    let files = tracing_appender::rolling::Builder::new()
        .rotation(tracing_appender::rolling::Rotation::DAILY)
        .filename_prefix(prefix)
        .filename_suffix(suffix)
        .max_log_files(LOG_FILES)
        .build(folder)
        .with_context(|| format!("cannot write `--log-file {}`", file.display()))?;
    Ok(thread(files, serves, form))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    #[test]
    fn an_entry_is_one_line_whatever_is_in_it() {
        let check = |entry: &str, form: Form, expected: &str| {
            assert_eq!(in_one_line(entry, form), expected, "{entry:?}");
        };
        check("2026 INFO call tool=a\n", Form::Plain, "2026 INFO call tool=a\n");
        let forged = "2026 INFO call client=x\n2026 INFO call tool=b\n";
        check(forged, Form::Plain, "2026 INFO call client=x\\n2026 INFO call tool=b\n");
        check(forged, Form::Coloured, "2026 INFO call client=x\\n2026 INFO call tool=b\n");
        check("a \u{1b}[2J\u{9b}1m\u{202e}b", Form::Plain, "a \\u{1b}[2J\\u{9b}1m\\u{202e}b\n");
        let colours = "\u{1b}[2m2026\u{1b}[0m \u{1b}[32m INFO\u{1b}[0m a\rb\n";
        check(colours, Form::Coloured, "\u{1b}[2m2026\u{1b}[0m \u{1b}[32m INFO\u{1b}[0m a\\rb\n");
        check("\u{1b}[2Jgone\n", Form::Coloured, "2Jgone\n");
        let json = serde_json::json!({ "client": "x\n\u{85}\u{202e}\u{e0041}é" });
        let entry = format!("{json}\n");
        let line = in_one_line(&entry, Form::Json);
        assert!(line.is_ascii() || !line.contains(['\u{85}', '\u{202e}']), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).expect("it is JSON"), json);
    }

    /// Returns what a subscriber writes of events of every kind, without their times.
    fn written<S: Subscriber + Send + Sync + 'static>(
        subscriber: impl FnOnce(Arc<Mutex<Vec<u8>>>) -> S,
    ) -> Vec<String> {
        let written = Arc::<Mutex<Vec<u8>>>::default();
        tracing::subscriber::with_default(subscriber(written.clone()), || {
            tracing::info!(client = %"a b", n = 7, size = 8_usize, ratio = 0.5, ok = true, outcome = "o\"k", "call {}", 1);
            tracing::warn!(error = ?Some("gone"), minus = -1, nothing = None::<u8>);
            let outer = tracing::info_span!("outer", id = 3, name = "n");
            let _outer = outer.enter();
            let inner = tracing::warn_span!("inner");
            let _inner = inner.enter();
            tracing::error!("in spans");
        });
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        written.lines().map(|line| line.split_once('Z').expect("a time").1.to_owned()).collect()
    }

    #[test]
    fn plain_entries_look_like_the_default_ones() {
        let layer = || tracing_subscriber::fmt().with_ansi(false);
        let default = written(|to| layer().with_writer(move || Shared(to.clone())).finish());
        let plain =
            written(|to| layer().event_format(PlainFormat).with_writer(move || Shared(to.clone())).finish());
        assert_eq!(plain, default);
        assert_eq!(plain.len(), 3);
        assert!(plain[2].ends_with(": in spans"), "{plain:?}");
    }

    #[test]
    fn a_panic_is_in_the_log_without_what_it_quotes() {
        let to = Arc::<Mutex<Vec<u8>>>::default();
        let written = to.clone();
        let log = tracing_subscriber::fmt().json().with_writer(move || Shared(to.clone())).finish();
        let quoted = String::from("a secret");
        tracing::subscriber::with_default(log, || {
            log_panics();
            let constant = std::panic::catch_unwind(|| panic!("of this test"));
            let composed = std::panic::catch_unwind(|| panic!("not expected: {quoted}"));
            drop(std::panic::take_hook());
            assert!(constant.is_err() && composed.is_err());
        });
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let entries: Vec<&str> = written.lines().collect();
        let [constant, composed] = entries[..] else { panic!("{written}") };
        assert!(constant.contains("src/cli/log.rs:") && constant.contains("of this test"), "{constant}");
        assert!(composed.contains("src/cli/log.rs:") && !composed.contains("secret"), "{composed}");
    }

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer that waits for a word before each line, and keeps the lines.
    struct Slow(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().extend_from_slice(lines);
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn entries_that_are_dropped_are_counted_in_the_log() {
        for form in [Form::Plain, Form::Json] {
            let (go, word) = mpsc::sync_channel(0);
            let written = Arc::<Mutex<Vec<u8>>>::default();
            let (mut entries, guard) = thread(Slow(word, written.clone()), false, form);
            for _ in 0..MOST_WAITING + 100 {
                entries.write_all(b"{}\n").unwrap();
            }
            drop(go);
            drop(guard);
            let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
            let told =
                written.lines().find(|line| line.contains("log entries were dropped")).expect("it is told");
            let lines = written.lines().count() - 1;
            assert!(told.contains(&format!("{} log", MOST_WAITING + 100 - lines)), "{lines}: {told}");
            if form == Form::Json {
                assert_eq!(serde_json::from_str::<serde_json::Value>(told).expect("JSON")["level"], "WARN");
            }
        }
    }

    #[test]
    fn an_entry_of_json_names_its_replica() {
        let name = serde_json::Value::from("a \"b\"").to_string();
        let entry = with_replica("{\"level\":\"INFO\"}\n", Some(&name));
        let read: serde_json::Value = serde_json::from_str(&entry).expect("it is JSON");
        assert_eq!(read, serde_json::json!({ "replica": "a \"b\"", "level": "INFO" }));
        assert_eq!(with_replica("{\"level\":\"INFO\"}\n", None), "{\"level\":\"INFO\"}\n");
    }
}
