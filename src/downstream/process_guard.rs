//! A second process that outlives the gateway by a moment and ends its servers if the gateway was
//! killed.
//!
//! The gateway writes the live process groups to a pipe. When the pipe ends, for whatever reason, the
//! guard ends those groups and exits. Without a guard (no executable given, or not on Unix) a clean
//! stop still leaves nothing behind.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use parking_lot::Mutex;

/// The argument that runs the binary as the guard.
pub const GUARD_COMMAND: &str = "__guard";

/// The gateway's end.
#[derive(Debug, Default)]
pub struct ProcessGuard {
    executable: Option<PathBuf>,
    process: Mutex<Option<(Child, ChildStdin)>>,
}

impl ProcessGuard {
    /// Returns a guard that runs `executable` with [`GUARD_COMMAND`] once there is a process to watch.
    pub fn new(executable: Option<PathBuf>) -> Self {
        Self { executable: executable.filter(|_| cfg!(unix)), process: Mutex::new(None) }
    }

    /// Starts the guard if it is not running yet. Called before the first child starts.
    pub fn start(&self) {
        self.write("");
    }

    /// Adds a process group that has to end with the gateway.
    pub fn watch(&self, group: i32) {
        self.write(&format!("+{group}\n"));
    }

    /// Removes a process group that has ended.
    pub fn forget(&self, group: i32) {
        self.write(&format!("-{group}\n"));
    }

    fn write(&self, line: &str) {
        let Some(executable) = &self.executable else { return };
        let mut process = self.process.lock();
        if process.is_none() {
            let mut command = Command::new(executable);
            command.arg(GUARD_COMMAND).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            #[cfg(unix)]
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            match command.spawn() {
                Ok(mut child) => *process = child.stdin.take().map(|stdin| (child, stdin)),
                Err(error) => tracing::warn!(%error, "the guard of child processes could not be started"),
            }
        }
        if let Some((_, stdin)) = process.as_mut()
            && let Err(error) = stdin.write_all(line.as_bytes())
        {
            tracing::warn!(%error, "the guard of child processes has exited");
        }
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        if let Some((mut child, stdin)) = self.process.get_mut().take() {
            drop(stdin);
            let _ = child.wait();
        }
    }
}

/// The guard's end: reads until the gateway is gone, then ends the groups that are left.
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
    // Servers see their stdin close at the same moment, and most exit by themselves.
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
