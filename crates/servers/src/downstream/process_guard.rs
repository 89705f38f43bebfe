//! A second process that outlives the gateway by a moment and ends the gateway's servers if the gateway was
//! killed.
//!
//! The gateway writes the live process groups to a pipe. When the pipe ends, for whatever reason, the guard
//! ends those groups and what their programs have started (`descendants`), and exits. A guard that is killed
//! itself is replaced. Without a guard (no executable given, or not on Unix), a clean stop still leaves
//! nothing behind.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::descendants::{self, ProcessSignal, signal};

/// The argument that runs the binary as the guard.
pub const GUARD_COMMAND: &str = "__guard";
/// How long leftover processes may take to end by themselves.
const GRACE: Duration = Duration::from_millis(700);
/// A guard that ended sooner than this is replaced only after a delay of the same length.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The gateway's side. A guard that ends before the gateway is replaced at once.
#[derive(Debug, Default)]
pub struct ProcessGuard {
    shared: Arc<Shared>,
    /// The thread that waits for the guard's end.
    watcher: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    executable: Option<PathBuf>,
    /// The mark of all programs of the gateway.
    mark: String,
    watched: Mutex<GuardState>,
}

/// What the guard needs to know.
#[derive(Debug, Default)]
struct GuardState {
    /// The live process groups, for a replacement guard.
    groups: BTreeSet<i32>,
    /// The pipe to the guard.
    pipe: Option<ChildStdin>,
    is_closing: bool,
}

impl ProcessGuard {
    /// Returns a guard that runs `executable` with [`GUARD_COMMAND`] once there is a process to watch.
    pub fn new(executable: Option<PathBuf>) -> Self {
        let mark = uuid::Uuid::new_v4().simple().to_string();
        let shared = Shared { executable, mark, ..Shared::default() };
        Self { shared: Arc::new(shared), watcher: Mutex::new(None) }
    }

    /// Returns the mark of all programs of the gateway.
    pub(super) fn mark(&self) -> &str {
        &self.shared.mark
    }

    /// Returns Nonet's own executable, if its path is known.
    pub fn executable(&self) -> Option<&Path> {
        self.shared.executable.as_deref()
    }

    /// Starts the guard if it is not running yet. Called before the first child starts.
    pub fn start(&self) {
        let Some(executable) = self.executable().filter(|_| cfg!(unix)) else { return };
        let mut watcher = self.watcher.lock();
        if watcher.is_some() {
            return;
        }
        let first = match start(executable, &self.shared.mark) {
            Ok((child, pipe)) => {
                self.shared.watched.lock().pipe = Some(pipe);
                child
            }
            Err(error) => {
                tracing::warn!(%error, "the guard of child processes could not be started");
                return;
            }
        };
        let shared = self.shared.clone();
        let watching = thread::Builder::new().name("guard".into()).stack_size(256 << 10);
        match watching.spawn(move || shared.keep(first)) {
            Ok(thread) => *watcher = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "the guard of child processes could not be replaced if it ended")
            }
        }
    }

    /// Adds a process group that must end with the gateway.
    pub fn watch(&self, group: i32) {
        let mut watched = self.shared.watched.lock();
        watched.groups.insert(group);
        watched.write(&format!("+{group}\n"));
    }

    /// Removes a process group that has ended.
    pub fn forget(&self, group: i32) {
        let mut watched = self.shared.watched.lock();
        watched.groups.remove(&group);
        watched.write(&format!("-{group}\n"));
    }
}

impl GuardState {
    /// Writes to the guard. A guard that has ended is replaced by its watcher, which writes all groups again.
    fn write(&mut self, line: &str) {
        if let Some(pipe) = self.pipe.as_mut()
            && pipe.write_all(line.as_bytes()).is_err()
        {
            self.pipe = None;
        }
    }
}

impl Shared {
    /// Waits for the guard's end, and replaces the guard as long as the gateway runs.
    fn keep(&self, mut guard: Child) {
        let Some(executable) = &self.executable else { return };
        let mut began = Instant::now();
        loop {
            let ended = guard.wait();
            if self.watched.lock().is_closing {
                return;
            }
            let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            if began.elapsed() < SHORT_LIFE {
                thread::sleep(SHORT_LIFE);
            }
            began = Instant::now();
            let mut watched = self.watched.lock();
            if watched.is_closing {
                return;
            }
            match start(executable, &self.mark) {
                Ok((child, pipe)) => {
                    guard = child;
                    watched.pipe = Some(pipe);
                    let groups: String = watched.groups.iter().map(|group| format!("+{group}\n")).collect();
                    watched.write(&groups);
                    tracing::warn!(%status, "the guard of child processes has ended before the gateway; another one replaces it");
                }
                Err(error) => {
                    let lost = "the guard of child processes could not be replaced: servers may outlive a gateway that is killed";
                    tracing::error!(%error, "{lost}");
                    watched.pipe = None;
                    return;
                }
            }
        }
    }
}

fn start(executable: &Path, mark: &str) -> io::Result<(Child, ChildStdin)> {
    let mut command = Command::new(executable);
    command.arg(GUARD_COMMAND).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).env_clear();
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn()?;
    let mut pipe = child.stdin.take().ok_or_else(|| io::Error::other("the process has no pipe"))?;
    writeln!(pipe, "={mark}")?;
    Ok((child, pipe))
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        {
            let mut watched = self.shared.watched.lock();
            watched.is_closing = true;
            watched.pipe = None;
        }
        if let Some(watcher) = self.watcher.get_mut().take() {
            let _ = watcher.join();
        }
    }
}

/// The guard's side: reads until the gateway is gone, then ends the remaining groups.
pub fn run(input: impl io::Read) {
    let (mut groups, mut mark) = (BTreeSet::new(), None);
    for line in io::BufReader::new(input).lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(1) {
            Some(("+", group)) => groups.extend(group.parse::<i32>().ok()),
            Some(("=", of_gateway)) => mark = Some(of_gateway.to_string()),
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
    // Servers see their stdin close at the same moment, and most exit on their own.
    thread::sleep(Duration::from_millis(500));
    // A process group has the number of its leader, negated.
    let groups = || groups.iter().map(|group| -group);
    signal(groups(), ProcessSignal::Term);
    thread::sleep(GRACE);
    signal(groups(), ProcessSignal::Kill);
    if let Some(mark) = mark {
        descendants::end_all_of(&mark, GRACE);
    }
}
