//! Finds what a program without a sandbox has started, also in sessions of its own: every process inherits a
//! variable with the mark of the program's start. Only Linux shows a process's variables; a process that
//! starts without them is not found.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use nonet_base::variables;

/// The pause between two looks at processes that were asked to end.
const LOOK: Duration = Duration::from_millis(20);
/// How often processes are looked for again that start while others are ended.
const ROUNDS: u32 = 5;

/// The mark of one start of a program.
#[derive(Clone, Debug)]
pub(super) struct ProcessMark(String);

impl ProcessMark {
    /// Returns the mark of the next start.
    pub(super) fn next(gateway: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        Self(format!("{gateway}.{}", COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns the variable that carries the mark.
    pub(super) fn variable(&self) -> (&'static str, &str) {
        (variables::STARTED_BY, &self.0)
    }

    /// Ends what is left of the program. Processes have `grace` to end by themselves. Blocks.
    pub(super) fn end(&self, grace: Duration) {
        end(&format!("{}={}\0", variables::STARTED_BY, self.0), grace);
    }
}

/// Ends all that programs of a gateway have started. Blocks.
pub(super) fn end_all_of(gateway: &str, grace: Duration) {
    end(&format!("{}={gateway}.", variables::STARTED_BY), grace);
}

/// Ends the processes with a variable that begins like this.
fn end(begins: &str, grace: Duration) {
    let until = Instant::now() + grace;
    for round in 0..ROUNDS {
        let found = having(begins);
        if found.is_empty() {
            return;
        }
        if round == 0 && !grace.is_zero() {
            signal(found.iter().copied(), ProcessSignal::Term);
            while Instant::now() < until && found.iter().any(|id| has(*id, begins)) {
                thread::sleep(LOOK);
            }
        } else {
            signal(found, ProcessSignal::Kill);
            thread::sleep(LOOK);
        }
    }
}

/// Returns the processes with a variable that begins like this. A process in another control group than this
/// one stays: the user's session has taken it over, as it does with a browser.
fn having(begins: &str) -> Vec<i32> {
    let Ok(own) = fs::read("/proc/self/cgroup") else { return Vec::new() };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_ours = |id: &i32| fs::read(format!("/proc/{id}/cgroup")).is_ok_and(|group| group == own);
    ids.filter(|id| has(*id, begins)).filter(is_ours).collect()
}

fn has(process: i32, begins: &str) -> bool {
    let variables = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    // Each variable ends with a zero byte.
    variables.split_inclusive(|byte| *byte == 0).any(|variable| variable.starts_with(begins.as_bytes()))
}

/// A signal that ends processes.
#[derive(Clone, Copy)]
pub(super) enum ProcessSignal {
    Term,
    Kill,
}

/// Signals processes, or process groups by their negative numbers. What has ended gets none.
pub(super) fn signal(ids: impl IntoIterator<Item = i32>, signal: ProcessSignal) {
    #[cfg(unix)]
    for id in ids {
        use nix::{
            sys::signal::{SIGKILL, SIGTERM, kill},
            unistd::Pid,
        };
        let signal = match signal {
            ProcessSignal::Term => SIGTERM,
            ProcessSignal::Kill => SIGKILL,
        };
        let _ = kill(Pid::from_raw(id), signal);
    }
    #[cfg(not(unix))]
    let _ = (ids, signal);
}
