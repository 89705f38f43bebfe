//! Limits what a child-process server can reach: files, network, other processes.
//!
//! A process with threads cannot set up a sandbox for a child without unsafe code after `fork`. So the
//! gateway runs itself again as a helper ([`SANDBOX_COMMAND`]) in two single-threaded steps. The first step
//! creates the namespaces. The second ([`INIT_COMMAND`]) is the first process inside them: it builds the root
//! folder, drops its remaining privileges, and starts the program. All processes of the sandbox end with
//! either step. Only Linux has a sandbox; elsewhere, a server that requires one does not start.

#[cfg(target_os = "linux")]
mod cgroup;
mod homes;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod inside;
mod places;
#[cfg(target_os = "linux")]
mod proxy;
#[cfg(target_os = "linux")]
mod restrict;
#[cfg(target_os = "linux")]
mod root;
#[cfg(target_os = "linux")]
mod start;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
};

use nonet_config::{Network, SandboxSettings};
use serde::{Deserialize, Serialize};

pub use homes::{count_homes, forget_homes};
pub use places::Places;

/// The argument that runs the binary as the helper.
pub const SANDBOX_COMMAND: &str = "__sandbox";
/// The argument that runs the binary as the first process of a sandbox.
pub const INIT_COMMAND: &str = "__sandbox-init";
/// The exit code of a sandbox that could not be set up.
const NOT_SET_UP: u8 = 125;
/// How long the helper may take to try a sandbox.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
/// The variable with the [`SandboxSpec`].
const SPEC: &str = "NONET_SANDBOX";
/// The prefix of the program's variables in the helper's environment, where they must have no effect.
const PREFIX: &str = "NONET_SANDBOX_ENV_";
/// Variables that lead to the user's agents and session. A sandbox drops them.
const AGENTS: [&str; 12] = [
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "GPG_AGENT_INFO",
    "GNUPGHOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "DOCKER_HOST",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
    "BROWSER",
];

/// Everything that the helper needs to know, besides the program, its arguments and its variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The server's name.
    pub server: String,
    /// Readable files and folders, as configured.
    pub read: Vec<PathBuf>,
    /// Writable files and folders, as configured.
    pub write: Option<Vec<PathBuf>>,
    /// The addresses that may be connected to.
    pub net: Network,
    /// The maximum memory of all processes together in a control group, else of each process, in bytes.
    pub memory_bytes: Option<u64>,
    /// The maximum number of processes and threads.
    pub processes: Option<u64>,
    /// Whether a weaker sandbox is unacceptable.
    pub required: bool,
    /// The configured working directory.
    pub cwd: Option<PathBuf>,
    /// The user's home folder.
    pub home: Option<PathBuf>,
    /// The folder that the program sees as its home folder; `None`: a temporary one that ends with the
    /// program.
    pub own: Option<PathBuf>,
    /// The folder that earlier versions used for every server of this name. It becomes `own` if there is none
    /// yet.
    pub earlier: Option<PathBuf>,
    /// Paths that are never shown: Nonet's state, configuration and secrets.
    pub hidden: Vec<PathBuf>,
    /// Nonet's state folder, which knows the gateways' own ports.
    pub state: Option<PathBuf>,
}

impl SandboxSpec {
    /// Describes the sandbox of a server. `state` is Nonet's state folder, `config` its file.
    pub fn new(
        server: &str,
        settings: &SandboxSettings,
        cwd: Option<&Path>,
        state: Option<&Path>,
        config: &Path,
        lasts: bool,
    ) -> Self {
        let config = std::path::absolute(config).unwrap_or_else(|_| config.into());
        let secrets = nonet_config::secrets_file::beside(&config);
        let lock = nonet_config::lock_file_beside(&config);
        Self {
            server: server.into(),
            read: settings.read.clone(),
            write: settings.write.clone(),
            net: settings.net.clone(),
            memory_bytes: settings.memory_bytes,
            processes: settings.processes,
            required: settings.required,
            cwd: cwd.map(Into::into),
            home: std::env::home_dir().filter(|home| home.is_absolute()),
            own: state.filter(|_| lasts).map(|state| homes::of(state, &config, server)),
            earlier: state.filter(|_| lasts).map(|state| homes::earlier(state, server)),
            hidden: state.map(Into::into).into_iter().chain([config, secrets, lock]).collect(),
            state: state.map(Into::into),
        }
    }

    /// Returns the environment of the helper. The program's variables cannot affect the helper itself.
    pub fn helper_environment<'a>(
        &self,
        variables: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
    ) -> BTreeMap<OsString, OsString> {
        environment_of_step(self, variables)
    }
}

/// Returns the environment of a step of the helper: what it is given, and the program's variables.
fn environment_of_step<'a>(
    given: &impl Serialize,
    variables: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
) -> BTreeMap<OsString, OsString> {
    let given = serde_json::to_string(given).expect("names and paths are JSON");
    let carried = variables.into_iter().map(|(name, value)| {
        let mut carried = OsString::from(PREFIX);
        carried.push(name);
        (carried, value.to_os_string())
    });
    carried.chain([(SPEC.into(), given.into())]).collect()
}

/// Returns whether a sandbox drops a variable that every other server inherits.
pub fn leaves_out(name: &str) -> bool {
    AGENTS.iter().any(|agent| agent.eq_ignore_ascii_case(name))
}

/// Returns whether a sandboxed process of this machine holds the socket with this number. A program in a
/// weaker sandbox, without namespaces, cannot be told from others. Blocks.
pub fn holds_socket(inode: u64) -> bool {
    #[cfg(target_os = "linux")]
    return inside::holds_socket(inode);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = inode;
        false
    }
}

/// Whether this operating system supports a sandbox.
pub const IS_POSSIBLE: bool = cfg!(target_os = "linux");

/// Returns why this machine has no complete sandbox; `None` if it has. Tries one, without a program.
pub async fn weakness(executable: &Path) -> Option<String> {
    if !IS_POSSIBLE {
        return Some(format!("Nonet has no sandbox for {}", std::env::consts::OS));
    }
    let spec = SandboxSpec {
        server: "any server".into(),
        net: Network::Closed,
        required: true,
        home: std::env::home_dir().filter(|home| home.is_absolute()),
        ..SandboxSpec::default()
    };
    let mut command = tokio::process::Command::new(executable);
    command.arg(SANDBOX_COMMAND).env_clear().envs(spec.helper_environment([]));
    let output = command.stdin(std::process::Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(PATIENCE, output).await {
        Ok(Ok(output)) if output.status.success() => None,
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let why = text.trim().split_once("was not started: ").map_or(text.trim(), |(_, why)| why);
            Some(nonet_base::text::clip(why, 600))
        }
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it was not set up within {PATIENCE:?}")),
    }
}

/// Returns what enforces the limits of a sandbox on this machine; `None` if it has none.
pub fn enforcement(settings: &SandboxSettings) -> Option<Enforcement> {
    let (memory, processes) = (settings.memory_bytes, settings.processes);
    if memory.is_none() && processes.is_none() {
        return None;
    }
    #[cfg(target_os = "linux")]
    let group = cgroup::Group::make("check", memory, processes).map(drop);
    #[cfg(not(target_os = "linux"))]
    let group = Err::<(), String>(format!("{} has none", std::env::consts::OS));
    Some(Enforcement { memory: memory.is_some(), processes: processes.is_some(), group })
}

/// What enforces the limits of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforcement {
    memory: bool,
    processes: bool,
    /// Why there is no control group.
    group: Result<(), String>,
}

impl Enforcement {
    /// Whether a control group enforces them.
    pub fn is_whole(&self) -> bool {
        self.group.is_ok()
    }
}

impl std::fmt::Display for Enforcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Err(why) = &self.group else {
            return f.write_str("a control group counts all its processes together");
        };
        write!(f, "there is no control group ({why})")?;
        if self.memory {
            f.write_str(
                ", so `memory_bytes` is the address space of each process (RLIMIT_AS), of which some interpreters \
                 reserve far more than they use",
            )?;
        }
        match self.processes {
            true if is_root() => f.write_str(", and nothing enforces `processes` for root"),
            true => f.write_str(", and `processes` is RLIMIT_NPROC"),
            false => Ok(()),
        }
    }
}

/// Whether this process is root's, whose processes Linux does not count.
fn is_root() -> bool {
    #[cfg(unix)]
    return nix::unistd::geteuid().is_root();
    #[cfg(not(unix))]
    false
}

/// Why a sandbox could not be set up.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no other system has a sandbox"))]
#[derive(Debug, thiserror::Error)]
pub enum SetUpFault {
    /// A fault of the machine.
    #[error("this system does not allow a sandbox: {what}: {why}. {remedy}")]
    System {
        /// The refused feature, such as `user namespaces`.
        what: &'static str,
        /// The error of the system.
        why: String,
        /// What the user can change, in full sentences.
        remedy: &'static str,
    },
    /// A fault of the configuration.
    #[error("{0}")]
    Settings(String),
}

/// The remedy if the system does not allow a sandbox.
#[cfg(target_os = "linux")]
const REMEDY: &str = "User namespaces must be allowed (`sysctl \
    kernel.apparmor_restrict_unprivileged_userns=0`, `sysctl user.max_user_namespaces=10000`, or a \
    container that may create them). With `sandbox = { required = false }` the server starts with whatever \
    is available";

/// Runs the helper: sets up the namespaces and waits for the end. Must be called single-threaded.
#[cfg(target_os = "linux")]
pub fn run(command: &[OsString]) -> ExitCode {
    step(|spec: &SandboxSpec| spec.server.clone(), |spec, variables| start::start(spec, command, variables))
}

/// Runs the first process inside the namespaces.
#[cfg(target_os = "linux")]
pub fn run_init(command: &[OsString]) -> ExitCode {
    step(
        |inner: &start::SandboxStart| inner.spec.server.clone(),
        |inner, variables| init::serve(&inner, command, &variables),
    )
}

/// Reports that only Linux has a sandbox; the gateway does not ask for one elsewhere.
#[cfg(not(target_os = "linux"))]
pub fn run(_command: &[OsString]) -> ExitCode {
    ExitCode::from(NOT_SET_UP)
}

/// Reports that only Linux has a sandbox.
#[cfg(not(target_os = "linux"))]
pub fn run_init(_command: &[OsString]) -> ExitCode {
    ExitCode::from(NOT_SET_UP)
}

/// Runs a step of the helper with its input. A fault goes to stderr with the server's name, for the gateway.
#[cfg(target_os = "linux")]
fn step<T: serde::de::DeserializeOwned>(
    server: impl FnOnce(&T) -> String,
    run: impl FnOnce(T, BTreeMap<OsString, OsString>) -> Result<ExitCode, SetUpFault>,
) -> ExitCode {
    let (server, done) = match given::<T>() {
        Ok((input, variables)) => (server(&input), run(input, variables)),
        Err(fault) => ("?".into(), Err(fault)),
    };
    done.unwrap_or_else(|fault| {
        eprintln!("nonet: `{server}` was not started: {fault}");
        ExitCode::from(NOT_SET_UP)
    })
}

/// Returns the helper's input, and the program's variables.
#[cfg(target_os = "linux")]
fn given<T: serde::de::DeserializeOwned>() -> Result<(T, BTreeMap<OsString, OsString>), SetUpFault> {
    use std::os::unix::ffi::OsStrExt;
    let spec =
        std::env::var(SPEC).map_err(|_| SetUpFault::Settings("the gateway starts this command".into()))?;
    let spec = serde_json::from_str(&spec).map_err(|error| SetUpFault::Settings(error.to_string()))?;
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(PREFIX.as_bytes())?;
        Some((OsStr::from_bytes(name).to_os_string(), value))
    });
    Ok((spec, variables.collect()))
}

/// Closes this process's ends of the program's pipes: they belong to the program.
#[cfg(target_os = "linux")]
fn let_go_of_pipes() {
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = (nix::unistd::dup2_stdin(&null), nix::unistd::dup2_stdout(&null));
    }
}

/// Returns the exit code of a program, or that of a shell for a signal.
#[cfg(target_os = "linux")]
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
