//! A server as a child process: its own process group, its stderr in the log, no process left behind.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_base::text::{clean, clip};
use nonet_config::{Globs, SandboxSettings};
use nonet_sandbox as sandbox;
use nonet_text::secrets::without_secrets;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child as Process, ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{
    ConnectionContext,
    credentials::mask,
    descendants::{self, ProcessMark, ProcessSignal},
    environment,
    history::History,
};

/// The longest time for a server to exit after its stdin was closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_millis(1500);
/// The target under which stderr is logged.
const STDERR: &str = "nonet::stderr";
/// The longest piece of a line of stderr, in bytes, and how long an unfinished line is kept open.
const LONGEST_LINE: usize = 8_192;
const PAUSE: Duration = Duration::from_millis(200);
/// How many lines of stderr are logged per minute, so that a flood does not fill the disk.
const LOGGED_A_MINUTE: u32 = 100;
const LOGGED_AND_ONE: u32 = LOGGED_A_MINUTE + 1;

/// Counts lines per minute.
struct Meter {
    since: Instant,
    lines: u32,
}

impl Meter {
    fn new(now: Instant) -> Self {
        Self { since: now, lines: 0 }
    }

    /// Counts one more line. Returns its number in the minute.
    fn count(&mut self, now: Instant) -> u32 {
        if now.duration_since(self.since) >= Duration::from_secs(60) {
            *self = Self::new(now);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines
    }
}

/// A program and everything that it runs with.
pub(super) struct Program<'a> {
    pub server: &'a Arc<str>,
    /// Texts that must not be logged.
    pub secrets: &'a Arc<[String]>,
    /// The executable, looked up in PATH if it has no slash.
    pub command: &'a str,
    pub args: &'a [String],
    /// Variables besides the inherited ones.
    pub env: Vec<(&'a str, &'a str)>,
    /// Inherited variables besides the usual ones.
    pub inherit_env: &'a Globs,
    /// The working directory; Nonet's own if absent.
    pub cwd: Option<&'a Path>,
    /// What it may reach; everything that the user can, if absent.
    pub sandbox: Option<&'a SandboxSettings>,
    /// Whether its home folder in a sandbox is kept.
    pub lasts: bool,
    /// Takes the lines of its stderr.
    pub history: &'a Arc<History>,
}

/// Returns the helper that starts the program in its sandbox.
fn sandboxed(
    program: &Program<'_>,
    settings: &SandboxSettings,
    variables: BTreeMap<OsString, OsString>,
    context: &ConnectionContext,
) -> io::Result<Command> {
    let missing = || io::Error::other("its sandbox needs Nonet's own executable, whose path is unknown");
    let executable = context.guard.executable().ok_or_else(missing)?;
    let path = variables.get(OsStr::new("PATH")).cloned().unwrap_or_default();
    let is_file = |folder: PathBuf| folder.join(program.command).is_file();
    // The helper would fail too, with a less clear message.
    if !program.command.contains('/') && !std::env::split_paths(&path).any(is_file) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let spec = context.sandboxes.spec(program.server, settings, program.cwd, program.lasts);
    let variables = variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
    let mut command = Command::new(executable);
    command.env_clear().envs(spec.helper_environment(variables));
    command.args([sandbox::SANDBOX_COMMAND, "--", program.command]).args(program.args);
    Ok(command)
}

/// A running child and the group of processes that it leads.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    group: Option<i32>,
    /// Finds what it started in other sessions; a sandbox ends with all its processes.
    mark: Option<ProcessMark>,
    context: Arc<ConnectionContext>,
    history: Arc<History>,
    reading: Option<tokio::task::JoinHandle<()>>,
}

impl Child {
    /// Starts a program. Its stderr is drained into the log and into the history.
    pub(super) fn spawn(
        program: &Program<'_>,
        context: &Arc<ConnectionContext>,
    ) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        let mut variables =
            environment::of_program(program.inherit_env, program.sandbox, program.env.iter().copied());
        let mut mark = None;
        let mut command = match program.sandbox {
            Some(settings) if sandbox::IS_POSSIBLE => sandboxed(program, settings, variables, context)?,
            // The caller has checked that the server wants to start anyway.
            _ => {
                let (name, value) = mark.insert(ProcessMark::next(context.guard.mark())).variable();
                variables.insert(name.into(), value.into());
                let mut command = Command::new(program.command);
                command.args(program.args).env_clear().envs(variables);
                command
            }
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        if let Some(cwd) = program.cwd {
            command.current_dir(cwd);
        }
        #[cfg(unix)]
        command.process_group(0);
        context.guard.start();
        let mut process = command.spawn()?;
        let group = process.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group {
            context.guard.watch(group);
        }
        program.history.process_starts();
        let history = program.history.clone();
        let reading = process.stderr.take().map(|stderr| {
            let (server, secrets) = (program.server.clone(), program.secrets.clone());
            tokio::spawn(drain(stderr, server, secrets, context.clone(), history.clone()))
        });
        let missing = || io::Error::other("the process has no pipes");
        let stdout = process.stdout.take().ok_or_else(missing)?;
        let stdin = process.stdin.take().ok_or_else(missing)?;
        Ok((Self { process, group, mark, context: context.clone(), history, reading }, stdout, stdin))
    }

    /// Returns a reason followed by the last lines of its stderr.
    pub(super) fn with_stderr(&self, reason: &str) -> String {
        self.history.with_tail(reason)
    }

    /// Waits until the process has exited.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Returns the exit status, if the process has exited or exits within a moment.
    pub(super) async fn exit_status(&mut self) -> Option<String> {
        let status = timeout(Duration::from_millis(300), self.process.wait()).await.ok()?.ok()?;
        // The last lines may still be in the pipe, which an orphaned process may hold open.
        if let Some(reading) = self.reading.take() {
            let _ = timeout(Duration::from_millis(300), reading).await;
        }
        Some(match status.code() {
            Some(code) => format!("exit code {code}"),
            None => status.to_string(),
        })
    }

    /// Ends the process and its whole group. Stdin is already closed; SIGTERM and SIGKILL follow, each after
    /// a grace period.
    pub(super) async fn stop(mut self) {
        if timeout(GRACE, self.process.wait()).await.is_err() {
            self.signal(ProcessSignal::Term);
            if timeout(GRACE, self.process.wait()).await.is_err() {
                self.signal(ProcessSignal::Kill);
                let _ = self.process.wait().await;
            }
        }
        // The leader is gone; the rest of its group follows, and what left the group.
        self.signal(ProcessSignal::Kill);
        if let Some(mark) = self.mark.take() {
            let _ = tokio::task::spawn_blocking(move || mark.end(GRACE)).await;
        }
    }

    fn signal(&mut self, signal: ProcessSignal) {
        match self.group {
            // The whole group has the number of its leader, negated.
            Some(group) if cfg!(unix) => descendants::signal([-group], signal),
            _ => drop(self.process.start_kill()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(ProcessSignal::Kill);
        if let Some(mark) = self.mark.take() {
            mark.end(Duration::ZERO);
        }
        if let Some(group) = self.group {
            self.context.guard.forget(group);
        }
    }
}

/// Reads stderr into the log and into `history` until the process closes it, masking this server's secrets
/// and those of other servers.
async fn drain(
    stderr: ChildStderr,
    server: Arc<str>,
    secrets: Arc<[String]>,
    context: Arc<ConnectionContext>,
    history: Arc<History>,
) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    let mut meter = Meter::new(Instant::now());
    // Bytes, not `lines()`: stderr may be invalid UTF-8 and may lack line ends.
    while read_line(&mut reader, &mut line).await.is_ok_and(|n| n > 0) {
        // Cleaned first: hidden characters inside of a secret must not hide it.
        let text = mask(&secrets, clean(String::from_utf8_lossy(&line).trim_end()).as_ref());
        let text = context.secrets.load().mask(&text).replace('\n', " ");
        line.clear();
        if text.is_empty() {
            continue;
        }
        match meter.count(Instant::now()) {
            ..=LOGGED_A_MINUTE => {
                let text = clip(&without_secrets(&text).0, 500);
                tracing::debug!(target: STDERR, %server, "stderr: {text}");
            }
            LOGGED_AND_ONE => tracing::debug!(
                target: STDERR,
                %server,
                "stderr: more than {LOGGED_A_MINUTE} lines a minute; the rest of this minute is left out"
            ),
            _ => {}
        }
        history.wrote(&text);
    }
}

/// Reads up to a line end, or a piece of a line that is longer than [`LONGEST_LINE`] or stays open. So a
/// flood without line ends stays bounded, and a secret written in pieces stays whole.
async fn read_line(reader: &mut BufReader<ChildStderr>, line: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        let available = match line.is_empty() {
            true => reader.fill_buf().await?,
            false => match timeout(PAUSE, reader.fill_buf()).await {
                Ok(available) => available?,
                Err(_) => return Ok(line.len()),
            },
        };
        let end = available.iter().position(|byte| *byte == b'\n').map_or(available.len(), |at| at + 1);
        let end = end.min(LONGEST_LINE - line.len());
        line.extend_from_slice(&available[..end]);
        reader.consume(end);
        if end == 0 || line.len() == LONGEST_LINE || line.ends_with(b"\n") {
            return Ok(line.len());
        }
    }
}

/// Returns what to do about a launcher that is not installed.
pub fn missing_launcher(command: &str) -> String {
    let remedy = match command {
        "npx" | "npm" | "node" => "install Node.js, which brings `npx`",
        "uvx" | "uv" => "install uv (`pip install uv`, or your package manager)",
        "docker" => "install Docker",
        "bunx" | "bun" => "install Bun",
        "python" | "python3" => "install Python 3",
        _ => "install it, or give its full path as `command`",
    };
    format!("`{command}` is not on this machine's PATH: {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_the_minute() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        assert_eq!((meter.count(start), meter.count(start + Duration::from_secs(59))), (1, 2));
        assert_eq!(meter.count(start + Duration::from_secs(60)), 1);
    }
}
