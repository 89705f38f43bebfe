//! Hardens the process before anything else: other processes cannot read its memory, and nothing leaks into
//! child processes.

use nonet_base::variables;
use nonet_servers::downstream;

use super::args::{Cli, Command};

/// Closes this process to others of the same user, as far as the system allows. A sandbox's helpers do so
/// themselves, after creating their namespaces.
pub(super) fn process(cli: &Cli) {
    let command = cli.command.as_ref();
    variables::close_on_exec();
    if matches!(command, Some(Command::Sandbox { .. } | Command::SandboxInit { .. })) {
        return;
    }
    // Blocks debuggers, `/proc/PID/environ`, `mem` and `fd`, and core dumps.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_dumpable(false);
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        // Only the soft limit: a server may want core dumps.
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
        }
    }
    // A command that starts a gateway and exits passes its environment on.
    #[cfg(unix)]
    if matches!(command, Some(Command::StartShared { .. })) {
        return;
    }
    if !matches!(command, Some(Command::Connect { .. } | Command::Setup(_))) {
        variables::hide(downstream::is_own_variable);
    }
}
