//! A server as a child process: its own process group, its stderr in the log, nothing left behind.

use std::{
    collections::VecDeque,
    io,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child as Process, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{Around, environment};
use crate::{config::Globs, text::clip};

/// How long a server may take to leave after its stdin was closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_millis(1500);
/// How many lines of stderr are remembered for the message about a failed start.
const TAIL_LINES: usize = 12;
/// The target under which stderr is logged.
const STDERR: &str = "nonet::stderr";
/// How many lines of stderr are logged in a minute: a server that floods is not to fill the disk.
const LOGGED_A_MINUTE: u32 = 100;
const LOGGED_AND_ONE: u32 = LOGGED_A_MINUTE + 1;
/// The last lines of a server's stderr.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: &str) {
        if let Ok(mut lines) = self.0.lock() {
            if lines.len() == TAIL_LINES {
                lines.pop_front();
            }
            lines.push_back(clip(line, 300));
        }
    }

    /// The lines, oldest first, joined.
    pub fn text(&self) -> String {
        self.0.lock().map(|lines| lines.iter().cloned().collect::<Vec<_>>().join("\n")).unwrap_or_default()
    }
}

/// Counts lines by the minute.
struct Meter {
    since: Instant,
    lines: u32,
}

impl Meter {
    fn new(now: Instant) -> Self {
        Self { since: now, lines: 0 }
    }

    /// The number of one more line in its minute.
    fn count(&mut self, now: Instant) -> u32 {
        if now.duration_since(self.since) >= Duration::from_secs(60) {
            *self = Self::new(now);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines
    }
}

/// What to run.
pub struct Program<'a> {
    /// The server's name, for the log.
    pub server: &'a Arc<str>,
    /// What must not be logged.
    pub secrets: &'a Arc<[String]>,
    /// The executable, looked up in PATH if it has no slash.
    pub command: &'a str,
    /// Its arguments.
    pub args: &'a [String],
    /// Variables that it gets besides the inherited ones.
    pub env: Vec<(&'a str, &'a str)>,
    /// Variables that it inherits besides the usual ones.
    pub inherit_env: &'a Globs,
    /// Its working directory; Nonet's own if absent.
    pub cwd: Option<&'a Path>,
}

/// A running child and the group of processes that it leads.
#[derive(Debug)]
pub struct Child {
    process: Process,
    group: Option<i32>,
    around: Arc<Around>,
    tail: Tail,
    reading: Option<tokio::task::JoinHandle<()>>,
}

impl Child {
    /// Starts a program. Its stderr is drained into the log and into [`Child::tail`].
    pub fn spawn(program: &Program<'_>, around: &Arc<Around>) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        let mut command = Command::new(program.command);
        command
            .args(program.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_clear()
            .envs(environment::inherited(program.inherit_env))
            .envs(program.env.iter().copied())
            .kill_on_drop(true);
        if let Some(cwd) = program.cwd {
            command.current_dir(cwd);
        }
        #[cfg(unix)]
        command.process_group(0);
        around.guard.start();
        let mut process = command.spawn()?;
        let group = process.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group {
            around.guard.watch(group);
        }
        let tail = Tail::default();
        let mut reading = None;
        if let Some(stderr) = process.stderr.take() {
            let (server, tail, secrets) = (program.server.clone(), tail.clone(), program.secrets.clone());
            reading = Some(tokio::spawn(async move {
                let mut reader = BufReader::new(stderr);
                let mut line = Vec::new();
                let mut meter = Meter::new(Instant::now());
                // Bytes, not `lines()`: what a server prints need not be UTF-8, nor have line ends.
                while let Ok(n) = read_line(&mut reader, &mut line).await {
                    if n == 0 {
                        break;
                    }
                    let text = String::from_utf8_lossy(&line);
                    let text = super::mask(&secrets, text.trim_end());
                    if !text.is_empty() {
                        let left_out =
                            "more lines a minute than are logged; the rest of this minute is left out";
                        match meter.count(Instant::now()) {
                            ..=LOGGED_A_MINUTE => {
                                tracing::debug!(target: STDERR, %server, "stderr: {}", clip(&text, 500))
                            }
                            LOGGED_AND_ONE => tracing::debug!(target: STDERR, %server, "stderr: {left_out}"),
                            _ => {}
                        }
                        tail.push(&text);
                    }
                    line.clear();
                }
            }));
        }
        let missing = || io::Error::other("the child has no pipes");
        let stdout = process.stdout.take().ok_or_else(missing)?;
        let stdin = process.stdin.take().ok_or_else(missing)?;
        Ok((Self { process, group, around: around.clone(), tail, reading }, stdout, stdin))
    }

    /// What it last said on stderr.
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// How it ended, if it has, or does within a moment.
    pub async fn exit_status(&mut self) -> Option<String> {
        let status = timeout(Duration::from_millis(300), self.process.wait()).await.ok()?.ok()?;
        // What it said last may still be on its way; something that it left behind may hold the pipe.
        if let Some(reading) = self.reading.take() {
            let _ = timeout(Duration::from_millis(300), reading).await;
        }
        Some(match status.code() {
            Some(code) => format!("exit code {code}"),
            None => status.to_string(),
        })
    }

    /// Ends it and everything that it started: its stdin is closed already; then SIGTERM, then
    /// SIGKILL, each after a grace period.
    pub async fn stop(mut self) {
        if timeout(GRACE, self.process.wait()).await.is_err() {
            self.signal(Signal::Term);
            if timeout(GRACE, self.process.wait()).await.is_err() {
                self.signal(Signal::Kill);
                let _ = self.process.wait().await;
            }
        }
        // The leader is gone; what it left in its group goes too.
        self.signal(Signal::Kill);
    }

    #[cfg(unix)]
    fn signal(&mut self, signal: Signal) {
        use nix::{
            sys::signal::{self, killpg},
            unistd::Pid,
        };
        if let Some(group) = self.group {
            let signal = match signal {
                Signal::Term => signal::SIGTERM,
                Signal::Kill => signal::SIGKILL,
            };
            // An empty group is no fault: everything has left already.
            let _ = killpg(Pid::from_raw(group), signal);
        }
    }

    #[cfg(not(unix))]
    fn signal(&mut self, _signal: Signal) {
        let _ = self.process.start_kill();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::Kill);
        if let Some(group) = self.group {
            self.around.guard.forget(group);
        }
    }
}

#[derive(Clone, Copy)]
enum Signal {
    Term,
    Kill,
}

/// Reads up to a line end, at most 8 KiB at a time: a flood without line ends stays bounded.
async fn read_line(
    reader: &mut BufReader<tokio::process::ChildStderr>,
    line: &mut Vec<u8>,
) -> io::Result<usize> {
    let available = reader.fill_buf().await?;
    let end = available.iter().position(|byte| *byte == b'\n').map_or(available.len(), |at| at + 1);
    line.extend_from_slice(&available[..end]);
    reader.consume(end);
    Ok(end)
}

/// What to do about a launcher that is not there.
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
