//! A second process that outlives the gateway by a moment, to end the servers if the gateway was
//! killed before it could.
//!
//! The gateway tells it on a pipe which process groups are alive. When the pipe ends, whatever the
//! reason, it ends those groups and leaves. Without it (no executable given, or not on Unix) a clean
//! stop still leaves nothing behind.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

/// The argument that makes the binary be the guard.
pub const GUARD_COMMAND: &str = "__guard";

/// The gateway's end.
#[derive(Debug, Default)]
pub struct Guard {
    executable: Option<PathBuf>,
    process: Mutex<Option<(Child, ChildStdin)>>,
}

impl Guard {
    /// A guard that runs `executable` with [`GUARD_COMMAND`] once there is something to watch.
    pub fn new(executable: Option<PathBuf>) -> Self {
        Self { executable: executable.filter(|_| cfg!(unix)), process: Mutex::new(None) }
    }

    /// Starts the guard if it is not running yet: before the first child, not after.
    pub fn start(&self) {
        self.tell("");
    }

    /// From now on this process group ends with the gateway.
    pub fn watch(&self, group: i32) {
        self.tell(&format!("+{group}\n"));
    }

    /// This process group has ended.
    pub fn forget(&self, group: i32) {
        self.tell(&format!("-{group}\n"));
    }

    fn tell(&self, line: &str) {
        let Some(executable) = &self.executable else { return };
        let Ok(mut process) = self.process.lock() else { return };
        if process.is_none() {
            let mut command = Command::new(executable);
            command.arg(GUARD_COMMAND).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            #[cfg(unix)]
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            match command.spawn() {
                Ok(mut child) => *process = child.stdin.take().map(|stdin| (child, stdin)),
                Err(error) => tracing::warn!(%error, "no guard for child processes"),
            }
        }
        if let Some((_, stdin)) = process.as_mut()
            && let Err(error) = stdin.write_all(line.as_bytes())
        {
            tracing::warn!(%error, "the guard for child processes is gone");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(mut process) = self.process.lock()
            && let Some((mut child, stdin)) = process.take()
        {
            drop(stdin);
            let _ = child.wait();
        }
    }
}

/// The guard's end: reads until the gateway is gone, then ends what is left.
pub fn run(input: impl io::Read) {
    let mut groups = BTreeSet::new();
    for line in io::BufReader::new(input).lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(1) {
            Some(("+", group)) => groups.extend(group.parse::<i32>().ok()),
            Some(("-", group)) => {
                if let Ok(group) = group.parse::<i32>() {
                    groups.remove(&group);
                }
            }
            _ => {}
        }
    }
    if groups.is_empty() {
        return;
    }
    // Servers see their stdin close at the same moment; give them a chance to leave by themselves.
    std::thread::sleep(Duration::from_millis(500));
    signal(&groups, false);
    std::thread::sleep(Duration::from_millis(700));
    signal(&groups, true);
}

#[cfg(unix)]
fn signal(groups: &BTreeSet<i32>, kill: bool) {
    use nix::{
        sys::signal::{SIGKILL, SIGTERM, killpg},
        unistd::Pid,
    };
    for group in groups {
        let _ = killpg(Pid::from_raw(*group), if kill { SIGKILL } else { SIGTERM });
    }
}

#[cfg(not(unix))]
fn signal(_groups: &BTreeSet<i32>, _kill: bool) {}
