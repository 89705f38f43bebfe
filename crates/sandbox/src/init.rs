//! The second step of the helper: the first process of the sandbox. It builds the root folder, drops its
//! privileges, starts the program, and ends when the program does; the kernel then ends everything else in
//! the sandbox.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use nix::{
    sys::{
        prctl::{set_dumpable, set_pdeathsig},
        signal::{SigSet, Signal},
        wait::{WaitStatus, wait},
    },
    unistd::Pid,
};
use nonet_config::Network;

use super::{
    SetUpFault, exit_code, let_go_of_pipes, places, restrict,
    restrict::{Refusals, Scopes},
    root,
    start::{STOPPING, SandboxStart, own_user, system},
};

/// Builds the sandbox and runs the program in it to its end.
pub(super) fn serve(
    inner: &SandboxStart,
    command: &[OsString],
    variables: &BTreeMap<OsString, OsString>,
) -> Result<ExitCode, SetUpFault> {
    let SandboxStart { spec, places, user, group, is_counted } = inner;
    set_pdeathsig(Signal::SIGKILL).map_err(system("signals"))?;
    // The program must be stoppable like any other, so undo the first step's blocking.
    STOPPING.into_iter().collect::<SigSet>().thread_unblock().map_err(system("signals"))?;
    root::enter(spec, places)?;
    // From a nested user namespace, with the user's own number, no process has privileges over this
    // namespace's mounts and network.
    own_user((*user, 0), (*group, 0)).map_err(system("user namespaces in user namespaces"))?;
    let _ = set_dumpable(false);
    let home = spec.home.clone().unwrap_or_else(|| PathBuf::from("/tmp"));
    let mut writable: Vec<PathBuf> = places.write.iter().cloned().collect();
    writable.extend([home.clone(), "/tmp".into(), "/dev".into()]);
    let scopes = restrict::landlock(&["/".into()], &writable);
    // Names of abstract sockets belong to the network namespace.
    let sees_sockets = spec.net == Network::All && scopes != Scopes::SignalsAndSockets;
    let memory = !is_counted && spec.memory_bytes.is_some();
    restrict::seccomp(Refusals { network: false, sockets: sees_sockets, memory })?;
    let Some((program, arguments)) = command.split_first() else { return Ok(ExitCode::SUCCESS) };
    let path = variables.get(OsStr::new("PATH")).cloned().unwrap_or_default();
    let program = places::found(program, &path);
    let cwd = places.cwd.as_deref().unwrap_or(&home);
    restrict::limits(spec, *is_counted)?;
    let child = self::command(program.as_os_str(), arguments, variables, cwd)
        .env("HOME", &home)
        .env("TMPDIR", "/tmp")
        .spawn()
        .map_err(|error| {
            let seen = "It sees the system's folders, its interpreter and the paths of its configuration; \
                `sandbox = { read = [...] }` adds more";
            SetUpFault::Settings(format!(
                "`{}` could not be started in its sandbox: {error}. {seen}",
                program.display()
            ))
        })?;
    let_go_of_pipes();
    let program = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    loop {
        // Orphans are reparented to this process as well.
        match wait() {
            Ok(WaitStatus::Exited(process, code)) if process == program => {
                return Ok(exit_code(code));
            }
            Ok(WaitStatus::Signaled(process, signal, _)) if process == program => {
                return Ok(exit_code(128 + signal as i32));
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(SetUpFault::Settings(format!("cannot wait for its end: {error}"))),
        }
    }
}

/// Returns the program with only its own variables.
pub(super) fn command(
    program: &OsStr,
    arguments: &[OsString],
    variables: &BTreeMap<OsString, OsString>,
    cwd: &Path,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(variables).current_dir(cwd).arg0(program);
    command
}
