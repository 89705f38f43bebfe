//! The first step of the helper: it creates the namespaces, and waits for the end.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    net::TcpListener,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitCode},
    sync::mpsc,
    thread,
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::{
        prctl::set_dumpable,
        signal::{SigSet, Signal},
        socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, send, socket},
    },
    unistd::{getegid, geteuid},
};
use nonet_config::Network;
use serde::{Deserialize, Serialize};

use super::{
    INIT_COMMAND, Places, REMEDY, SANDBOX_COMMAND, SandboxSpec, SetUpFault, cgroup::Group,
    environment_of_step, exit_code, homes, init, let_go_of_pipes, proxy, restrict,
};

/// The signals that ask a program to stop. They reach the whole group, and this process must wait for the
/// program.
pub(super) const STOPPING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// What the second step needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SandboxStart {
    pub spec: SandboxSpec,
    pub places: Places,
    /// The numbers of the user and the group.
    pub user: u32,
    pub group: u32,
    /// Whether a control group limits its memory and processes.
    pub is_counted: bool,
}

/// Starts the program in a new sandbox, and waits for its end.
pub(super) fn start(
    mut spec: SandboxSpec,
    command: &[OsString],
    mut variables: BTreeMap<OsString, OsString>,
) -> Result<ExitCode, SetUpFault> {
    let places = Places::of(&spec, command, &variables)?;
    let mut in_use = None;
    if let Some(own) = &mut spec.own {
        let (real, lock) = homes::enter(own, spec.earlier.as_deref()).map_err(|error| {
            SetUpFault::Settings(format!("its home folder {} cannot be made: {error}", own.display()))
        })?;
        *own = real;
        in_use = Some(lock);
    }
    if !spec.required && !command.is_empty() {
        if is_whole(&spec) {
            spec.required = true;
        } else {
            return Err(weaker(&spec, &places, command, &variables));
        }
    }
    let group = group_of(&spec, command);
    // This process ends with the program, not by these signals.
    STOPPING.into_iter().collect::<SigSet>().thread_block().map_err(system("signals"))?;
    let (user, gid) = (geteuid().as_raw(), getegid().as_raw());
    // Root of the namespace, because only root keeps its privileges when another program is started.
    own_user((0, user), (0, gid)).map_err(system("user namespaces"))?;
    let state = spec.state.clone();
    let inner = SandboxStart { places, user, group: gid, is_counted: group.is_some(), spec };
    let mut child = match inner.spec.net.clone() {
        Network::All | Network::Closed => launch(&inner, command, &variables, None)?.0,
        Network::Hosts(hosts) => {
            for name in proxy::VARIABLES {
                variables.insert(name.into(), proxy::ADDRESS.into());
            }
            variables.insert("NODE_USE_ENV_PROXY".into(), "1".into());
            variables.insert("NO_PROXY".into(), "localhost,127.0.0.1".into());
            let (child, listener) = launch_apart(inner, command.to_vec(), variables)?;
            listener.into_iter().for_each(|listener| proxy::serve(listener, hosts.clone(), state.clone()));
            child
        }
    };
    // This process and its proxy are not the program's.
    group.iter().for_each(Group::leave);
    let _ = set_dumpable(false);
    let_go_of_pipes();
    let status = child.wait().map_err(|error| SetUpFault::Settings(error.to_string()))?;
    drop((group, in_use));
    Ok(exit_code(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())))
}

/// Launches from a thread of its own, with a port for the proxy: the proxy listens inside and connects from
/// here, because a network namespace belongs to a thread. That thread stays, because the first process inside
/// ends with it.
fn launch_apart(
    inner: SandboxStart,
    command: Vec<OsString>,
    variables: BTreeMap<OsString, OsString>,
) -> Result<(Child, Option<TcpListener>), SetUpFault> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let _ = sender.send(launch(&inner, &command, &variables, Some(proxy::PORT)));
        loop {
            thread::park();
        }
    });
    let stopped = |_| SetUpFault::Settings("the thread of its network ended".into());
    receiver.recv().map_err(stopped)?
}

/// Makes the control group for the limits of a sandbox, and enters it. `None` without limits, or where none
/// can be had.
fn group_of(spec: &SandboxSpec, command: &[OsString]) -> Option<Group> {
    if command.is_empty() {
        return None;
    }
    Group::make(&spec.server, spec.memory_bytes, spec.processes).and_then(Group::entered).ok()
}

/// Turns an error into a fault of the system.
pub(super) fn system<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> SetUpFault {
    move |error| SetUpFault::System { what, why: error.to_string(), remedy: REMEDY }
}

/// Enters a user namespace with full privileges over further namespaces. Each pair is the number inside and
/// the number outside.
pub(super) fn own_user(user: (u32, u32), group: (u32, u32)) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{} {} 1", user.0, user.1))?;
    fs::write("/proc/self/gid_map", format!("{} {} 1", group.0, group.1))
}

/// Creates the other namespaces and starts their first process, with a listener there if a port is given.
fn launch(
    inner: &SandboxStart,
    command: &[OsString],
    variables: &BTreeMap<OsString, OsString>,
    port: Option<u16>,
) -> Result<(Child, Option<TcpListener>), SetUpFault> {
    if inner.spec.net != Network::All {
        unshare(CloneFlags::CLONE_NEWNET).map_err(system("network namespaces"))?;
        loopback_up().map_err(system("a loopback address"))?;
    }
    let listener = port.map(|port| TcpListener::bind(("127.0.0.1", port)));
    let listener = listener.transpose().map_err(system("a port for the proxy"))?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC)
        .map_err(system("mount and process namespaces"))?;
    let variables = variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
    let child = Command::new("/proc/self/exe")
        .arg0("nonet")
        .arg(INIT_COMMAND)
        .arg("--")
        .args(command)
        .env_clear()
        .envs(environment_of_step(inner, variables))
        .spawn()
        .map_err(system("a first process"))?;
    Ok((child, listener))
}

/// Returns whether a complete sandbox is available: sets up this one without a program.
fn is_whole(spec: &SandboxSpec) -> bool {
    // What limits it is decided when it starts.
    let spec = SandboxSpec { required: true, memory_bytes: None, processes: None, ..spec.clone() };
    let tried = Command::new("/proc/self/exe")
        .arg0("nonet")
        .arg(SANDBOX_COMMAND)
        .env_clear()
        .envs(spec.helper_environment([]))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

/// Replaces this process by the program, with the restrictions available without namespaces. Returns only if
/// that fails.
fn weaker(
    spec: &SandboxSpec,
    places: &Places,
    command: &[OsString],
    variables: &BTreeMap<OsString, OsString>,
) -> SetUpFault {
    let temporary = tempfile::Builder::new().prefix("nonet-").tempdir().map(tempfile::TempDir::keep);
    let own = spec.own.clone().or(temporary.ok()).unwrap_or_else(std::env::temp_dir);
    let mut writable: Vec<_> = places.write.iter().cloned().collect();
    writable.extend([own.clone(), "/dev".into()]);
    let mut readable: Vec<_> = places.system.iter().chain(&places.read).cloned().collect();
    readable.push("/proc".into());
    // Without a network namespace, only the system calls can be blocked, which also blocks the listed hosts.
    let is_closed = spec.net != Network::All;
    // The program takes the place of this process, so the group stays until the next sandbox finds it empty.
    let is_counted = group_of(spec, command).map(std::mem::forget).is_some();
    let scopes = restrict::landlock(&readable, &writable);
    let without_sockets = scopes != restrict::Scopes::SignalsAndSockets || !places.sockets.is_empty();
    let refusals = restrict::Refusals {
        network: is_closed,
        sockets: without_sockets,
        memory: !is_counted && spec.memory_bytes.is_some(),
    };
    if let Err(fault) = restrict::seccomp(refusals).and_then(|()| restrict::limits(spec, is_counted)) {
        return fault;
    }
    let Some((program, arguments)) = command.split_first() else {
        return SetUpFault::Settings("there is no program".into());
    };
    let cwd = spec.cwd.as_deref().unwrap_or(&own);
    let error =
        init::command(program, arguments, variables, cwd).env("HOME", &own).env("TMPDIR", &own).exec();
    SetUpFault::Settings(format!("`{}` could not be started: {error}", Path::new(program).display()))
}

/// Brings up the loopback interface of the network namespace, by a message to the kernel (rtnetlink).
fn loopback_up() -> io::Result<()> {
    /// `RTM_NEWLINK`, `NLM_F_REQUEST`, the index of `lo`, `IFF_UP`.
    const MESSAGE: (u16, u16, i32, u32) = (16, 1, 1, 1);
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes());
    message.extend(MESSAGE.0.to_ne_bytes());
    message.extend(MESSAGE.1.to_ne_bytes());
    // The sequence number, and the sender's port.
    message.extend([0; 8]);
    // The family and the type of the interface.
    message.extend([0; 4]);
    message.extend(MESSAGE.2.to_ne_bytes());
    // The flags, and the mask of changed flags.
    message.extend(MESSAGE.3.to_ne_bytes());
    message.extend(MESSAGE.3.to_ne_bytes());
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    send(std::os::fd::AsRawFd::as_raw_fd(&netlink), &message, MsgFlags::empty())?;
    Ok(())
}
