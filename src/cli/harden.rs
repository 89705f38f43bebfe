//! What a process does first, while it is alone: nobody else reads its memory, and nothing leaks into what it starts.

use super::args::{Cli, Command};
use crate::{downstream, variables};

/// Closes this process to others of the same user, as far as the system lets it. The helpers of a sandbox do so themselves,
/// once they have made their namespaces.
pub(super) fn process(cli: &Cli) {
    let command = cli.command.as_ref();
    variables::close_on_exec();
    if matches!(command, Some(Command::Sandbox { .. } | Command::SandboxInit { .. })) {
        return;
    }
    // Neither a debugger nor `/proc/PID/environ`, `mem` or `fd`, and no core dump.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_dumpable(false);
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        // Only the soft limit: a server may want its own dumps.
        if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
        }
    }
    // A command that starts a gateway and leaves hands its environment on.
    #[cfg(unix)]
    if matches!(command, Some(Command::StartShared)) {
        return;
    }
    if !matches!(command, Some(Command::Connect { .. } | Command::Setup(_))) {
        variables::hide(downstream::is_own_variable);
    }
}
