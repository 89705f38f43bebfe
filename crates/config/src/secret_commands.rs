//! `[secrets.NAME]`: secrets that a program prints, such as the client of a company's store of secrets.
//!
//! A program runs when a value is first needed, within a time limit, and its output counts for a while. Then it
//! runs again beside everything else, and a new value is taken as a change of the file would be.

use std::{
    collections::HashMap,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use nonet_base::text::line;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::values::time;

/// The most bytes that a program may print.
const MAX_OUTPUT: usize = 256 << 10;
/// The longest time that a program may be given.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a failure counts, and the shortest time between two runs of a program.
const FAILED: Duration = Duration::from_secs(10);
/// How many programs are known. No file has more.
const MAX_KNOWN: usize = 200;
/// How often it is looked for programs that are due.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is looked whether a program has ended.
const POLL: Duration = Duration::from_millis(10);
/// How long its output is read after a program has ended.
const AFTER_END: Duration = Duration::from_millis(500);
/// How much of a program's last words a fault has, in characters.
const MAX_WORDS: usize = 200;

/// A program that prints secrets: `[secrets.NAME]`. Its output is `${NAME}`; of an output in JSON, `${NAME:path}`
/// is one value, such as `${vault:data.data.token}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretCommand {
    /// The program and its arguments. It runs with Nonet's environment, in the folder of this file.
    #[schemars(length(min = 1), example = json!(["vault", "kv", "get", "-format=json", "secret/nonet"]))]
    pub command: Vec<String>,
    /// How long it may take, at most a minute.
    #[serde(default = "default_timeout", with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub timeout: Duration,
    /// How long a value counts before the program runs again.
    #[serde(default = "default_refresh", with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub refresh: Duration,
}

fn default_timeout() -> Duration {
    Duration::from_secs(10)
}

fn default_refresh() -> Duration {
    Duration::from_secs(3_600)
}

/// The last output of a program; locked while it runs.
type OutputPlace = Arc<Mutex<Option<KnownOutput>>>;

/// What is known of the programs that ran, by program and folder.
static KNOWN: LazyLock<Mutex<HashMap<ProgramKey, OutputPlace>>> = LazyLock::new(Mutex::default);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProgramKey {
    of: SecretCommand,
    folder: PathBuf,
}

#[derive(Clone, Debug)]
struct KnownOutput {
    at: Instant,
    output: Result<String, String>,
}

impl KnownOutput {
    /// Whether the program has to run again.
    fn is_due(&self, command: &SecretCommand) -> bool {
        let lasts = if self.output.is_ok() { command.refresh.max(FAILED) } else { FAILED };
        self.at.elapsed() >= lasts
    }
}

/// Returns the value at a path in what a program prints.
pub(super) fn value(command: &SecretCommand, folder: &Path, path: Option<&str>) -> Result<String, String> {
    value_in(&output(command, folder)?, path)
}

/// Returns what a program prints, as it did a while ago or now. Only one of its kind runs at a time.
fn output(command: &SecretCommand, folder: &Path) -> Result<String, String> {
    let key = ProgramKey { of: command.clone(), folder: folder.into() };
    let place = {
        let mut known = KNOWN.lock();
        if known.len() >= MAX_KNOWN && !known.contains_key(&key) {
            known.clear();
        }
        known.entry(key).or_default().clone()
    };
    let mut known = place.lock();
    if let Some(known) = known.as_ref().filter(|known| !known.is_due(command)) {
        return known.output.clone();
    }
    let output = run(command, folder);
    *known = Some(KnownOutput { at: Instant::now(), output: output.clone() });
    output
}

/// Returns once a program prints something else than before.
pub async fn changed() {
    loop {
        tokio::time::sleep(LOOK).await;
        let due: Vec<_> = KNOWN
            .lock()
            .iter()
            .filter(|(key, place)| {
                let is_due = |known: &KnownOutput| known.is_due(&key.of);
                place.try_lock().is_some_and(|known| known.as_ref().is_some_and(is_due))
            })
            .map(|(key, place)| (key.clone(), place.clone()))
            .collect();
        for (key, place) in due {
            let fresh = tokio::task::spawn_blocking(move || refreshed(&key, &place)).await;
            if fresh.unwrap_or_default() {
                return;
            }
        }
    }
}

/// Runs a program again. Returns whether it prints something else. What was known stays if the program fails.
fn refreshed(key: &ProgramKey, place: &Mutex<Option<KnownOutput>>) -> bool {
    let output = run(&key.of, &key.folder);
    let mut known = place.lock();
    let before = known.as_ref().and_then(|known| known.output.clone().ok());
    let kept = match (&output, &before) {
        (Err(why), Some(_)) => {
            tracing::warn!(
                program = key.of.command[0],
                why,
                "a secret is not refreshed; the old value counts on"
            );
            before.clone().ok_or_else(String::new)
        }
        _ => output.clone(),
    };
    *known = Some(KnownOutput { at: Instant::now(), output: kept });
    output.is_ok_and(|output| Some(output) != before)
}

fn run(command: &SecretCommand, folder: &Path) -> Result<String, String> {
    let Some((program, arguments)) = command.command.split_first() else {
        return Err("has no program".into());
    };
    let failed = |error: io::Error| format!("`{program}` cannot be run: {error}");
    let mut started = Command::new(program);
    started.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !folder.as_os_str().is_empty() {
        started.current_dir(folder);
    }
    let mut child = started.spawn().map_err(failed)?;
    let words = child.stderr.take().map(|pipe| Printed::of(pipe, MAX_WORDS * 8));
    let printed = child.stdout.take().map(|pipe| Printed::of(pipe, MAX_OUTPUT + 1));
    let limit = command.timeout.min(MAX_TIMEOUT);
    let Some(succeeded) = ended(&mut child, limit).map_err(failed)? else {
        return Err(format!("`{program}` did not end within {}", humantime::format_duration(limit)));
    };
    let taken = |printed: Option<Printed>| printed.map(Printed::take).unwrap_or_default();
    if !succeeded {
        let words = String::from_utf8_lossy(&taken(words)).trim().to_owned();
        return Err(match line(&words, MAX_WORDS) {
            nothing if nothing.is_empty() => format!("`{program}` failed"),
            said => format!("`{program}` failed: {said}"),
        });
    }
    let printed = taken(printed);
    if printed.len() > MAX_OUTPUT {
        return Err(format!("`{program}` prints more than {MAX_OUTPUT} bytes"));
    }
    String::from_utf8(printed).map_err(|_| format!("`{program}` does not print UTF-8"))
}

/// What a program prints into a pipe, read on another thread.
struct Printed {
    kept: Arc<Mutex<Vec<u8>>>,
    ended: mpsc::Receiver<()>,
}

impl Printed {
    /// Reads a pipe to its end, and keeps at most this many bytes.
    fn of(mut pipe: impl Read + Send + 'static, most: usize) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = mpsc::sync_channel(1);
        let shared = kept.clone();
        thread::spawn(move || {
            let mut buffer = [0; 8 << 10];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                let mut kept = shared.lock();
                let room = most.saturating_sub(kept.len());
                kept.extend_from_slice(&buffer[..count.min(room)]);
            }
            let _ = end.try_send(());
        });
        Self { kept, ended }
    }

    /// Returns what the program has printed, once it has ended. What it has left running may hold the pipe
    /// open, and nobody waits for that.
    fn take(self) -> Vec<u8> {
        let _ = self.ended.recv_timeout(AFTER_END);
        std::mem::take(&mut self.kept.lock())
    }
}

/// Waits for the end of a program, and whether it succeeded. `None`: it took too long, and was killed.
fn ended(child: &mut Child, limit: Duration) -> io::Result<Option<bool>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if began.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Returns the value of a path in an output, or the whole output without one. A path leads through the members
/// of objects and the numbers of items, with dots.
fn value_in(output: &str, path: Option<&str>) -> Result<String, String> {
    let Some(path) = path else {
        let text = output.strip_suffix('\n').unwrap_or(output);
        return Ok(text.strip_suffix('\r').unwrap_or(text).into());
    };
    let whole: Value = serde_json::from_str(output).map_err(|_| "its output is not JSON".to_string())?;
    let mut at = &whole;
    for part in path.split('.') {
        let next = match at {
            Value::Object(members) => members.get(part),
            Value::Array(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
            _ => None,
        };
        at = next.ok_or_else(|| {
            // Names are no secrets; values are.
            let names = at.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>().join(", "));
            match names.filter(|names| !names.is_empty()) {
                Some(names) => format!("its output has no `{part}`, only {}", line(&names, MAX_WORDS)),
                None => format!("its output has no `{part}`"),
            }
        })?;
    }
    match at {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        _ => Err(format!("`{path}` of its output is not a text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> SecretCommand {
        let command = words.iter().map(|word| (*word).to_string()).collect();
        SecretCommand { command, timeout: Duration::from_millis(300), refresh: Duration::from_secs(3_600) }
    }

    #[test]
    fn a_path_leads_to_one_value() {
        let check = |output: &str, path: Option<&str>, expected: Result<&str, &str>| {
            let found = value_in(output, path);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{output} {path:?}");
        };
        check("s3cret\n", None, Ok("s3cret"));
        check("s3cret\r\n", None, Ok("s3cret"));
        check("two\nlines", None, Ok("two\nlines"));
        let json = r#"{"data":{"token":"t","port":5432,"tls":true,"list":["a","b"],"none":null}}"#;
        check(json, Some("data.token"), Ok("t"));
        check(json, Some("data.port"), Ok("5432"));
        check(json, Some("data.tls"), Ok("true"));
        check(json, Some("data.list.1"), Ok("b"));
        check(json, Some("data.tokn"), Err("its output has no `tokn`, only token, port, tls, list, none"));
        check(json, Some("data.list.2"), Err("its output has no `2`"));
        check(json, Some("data.token.x"), Err("its output has no `x`"));
        check(json, Some("data"), Err("`data` of its output is not a text"));
        check(json, Some("data.none"), Err("`data.none` of its output is not a text"));
        check("t", Some("data"), Err("its output is not JSON"));
    }

    #[cfg(unix)]
    #[test]
    fn a_program_runs_once_within_its_time_and_its_failure_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let shell = |script: &str| output(&command(&["sh", "-c", script]), folder.path());
        let counted = "echo x >> runs; cat runs | wc -l";
        assert_eq!((shell(counted), shell(counted)), (Ok("1\n".into()), Ok("1\n".into())));
        assert_eq!(shell("echo no access >&2; exit 3"), Err("`sh` failed: no access".into()));
        assert_eq!(shell("exit 3"), Err("`sh` failed".into()));
        assert_eq!(shell("sleep 60"), Err("`sh` did not end within 300ms".into()));
        assert_eq!(shell("sleep 60 &"), Ok(String::new()), "what it leaves behind holds nobody up");
        assert!(shell("head -c 300000 /dev/zero").is_err_and(|why| why.contains("more than")));
        assert!(shell("printf '\\377'").is_err_and(|why| why.contains("UTF-8")));
        let missing = output(&command(&["no-such-program"]), folder.path());
        assert!(missing.is_err_and(|why| why.starts_with("`no-such-program` cannot be run")));
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_fails_later_leaves_its_value() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = command(&["sh", "-c", "cat value"]);
        let key = ProgramKey { of, folder: folder.path().into() };
        let place = Mutex::new(None);
        let write = |value: &str| std::fs::write(folder.path().join("value"), value).expect("written");
        write("one");
        assert!(refreshed(&key, &place));
        assert!(!refreshed(&key, &place));
        write("two");
        assert!(refreshed(&key, &place));
        std::fs::remove_file(folder.path().join("value")).expect("removed");
        assert!(!refreshed(&key, &place));
        assert_eq!(place.lock().as_ref().map(|known| known.output.clone()), Some(Ok("two".into())));
    }
}
