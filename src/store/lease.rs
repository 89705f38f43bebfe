//! Leases: which gateway runs a job, and whether it still does.
//!
//! All gateways of one store run on one machine, so a lease is held by a process and lasts as long as the process. The
//! system reuses process numbers, in a container even for every start: an entry of this process's number that is older than
//! this process belongs to an earlier one.

use crate::clock::Clock;

/// The gateway that holds the leases of this process.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    /// The system's number of the process.
    pub process: u32,
    pub clock: Clock,
    /// When the process began, in milliseconds since 1970.
    pub since_ms: u64,
}

impl Holder {
    /// This process, from now on.
    pub fn new(clock: Clock) -> Self {
        Self { process: std::process::id(), since_ms: clock.unix_ms(), clock }
    }

    /// Whether the process that leased a job at this time still holds the lease.
    pub fn is_held(&self, process: u32, leased_ms: u64) -> bool {
        if process == self.process { leased_ms >= self.since_ms } else { is_alive(process) }
    }
}

/// Whether a process with this number runs; false where the system cannot say.
fn is_alive(process: u32) -> bool {
    #[cfg(unix)]
    {
        use nix::{errno::Errno, sys::signal, unistd::Pid};
        // 0 and negative numbers mean groups of processes.
        let number = i32::try_from(process).ok().filter(|number| *number > 0);
        let asked = number.map(|number| signal::kill(Pid::from_raw(number), None));
        // EPERM: the process runs, for another user.
        matches!(asked, Some(Ok(()) | Err(Errno::EPERM)))
    }
    #[cfg(not(unix))]
    {
        let _ = process;
        false
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::tests::dead_process, *};

    #[cfg(unix)]
    #[test]
    fn a_lease_lasts_as_long_as_its_process() {
        let clock = Clock::default();
        let before = clock.unix_ms();
        clock.advance(Duration::from_secs(60));
        let holder = Holder::new(clock.clone());
        clock.advance(Duration::from_secs(60));
        let own = std::process::id();
        let check = |process, leased_ms, expected| {
            assert_eq!(holder.is_held(process, leased_ms), expected, "{process} {leased_ms}");
        };
        check(own, clock.unix_ms(), true);
        check(own, before, false);
        check(1, before, true);
        check(dead_process(), clock.unix_ms(), false);
        // Numbers that are no process.
        for process in [0, u32::MAX, i32::MAX as u32] {
            check(process, clock.unix_ms(), false);
        }
    }
}
