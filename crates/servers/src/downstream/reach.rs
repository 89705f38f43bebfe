//! What a child-process server could reach, for people: `nonet check` shows it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::PathBuf,
    sync::Arc,
};

use nonet_config::{Network, ServerSettings, Transport};
use nonet_sandbox as sandbox;
use serde::{Serialize, Serializer};

use super::{Connection, ConnectionContext, environment};

/// What a server could reach.
#[derive(Clone, Debug, Serialize)]
pub struct Reach {
    /// The sandbox, if the server is in one.
    pub sandbox: Option<SandboxReach>,
    /// The names of its variables.
    pub variables: BTreeSet<String>,
}

/// What a sandbox leaves reachable.
#[derive(Clone, Debug, Serialize)]
pub struct SandboxReach {
    /// Readable files and folders, besides those of the system and of interpreters.
    pub read: BTreeSet<PathBuf>,
    /// Writable files and folders, besides the sandbox's own home folder and temporary folder.
    pub write: BTreeSet<PathBuf>,
    /// The reachable addresses.
    #[serde(serialize_with = "net")]
    pub net: Network,
    /// Folders named by arguments that are too broad to be opened for that reason.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub too_broad: BTreeSet<PathBuf>,
    /// Sockets of other programs in its folders, which it cannot use.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub sockets: BTreeSet<PathBuf>,
    /// What enforces `memory_bytes` and `processes`, if it has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<String>,
    /// Why the sandbox is weaker than configured, or unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weaker: Option<String>,
}

/// Returns `net` as the configuration writes it.
pub fn net_text(net: &Network) -> String {
    match net {
        Network::All => "all".into(),
        Network::Closed => "none".into(),
        Network::Hosts(hosts) => {
            let hosts: Vec<String> = hosts.iter().map(|it| format!("{}:{}", it.host, it.port)).collect();
            hosts.join(", ")
        }
    }
}

fn net<S: Serializer>(net: &Network, serializer: S) -> Result<S::Ok, S::Error> {
    match net {
        Network::Hosts(_) => serializer.collect_seq(net_text(net).split(", ")),
        _ => serializer.serialize_str(&net_text(net)),
    }
}

impl Reach {
    /// Returns what each of these servers could reach, except servers that are not programs. Reads the file
    /// system, and tries the sandbox once if a server uses one.
    pub async fn of_all(
        connections: impl Iterator<Item = &Connection>,
        context: &ConnectionContext,
    ) -> BTreeMap<Arc<str>, Self> {
        let servers: Vec<_> = connections.map(|it| (it.name.clone(), it.settings())).collect();
        let weaker = match context.guard.executable() {
            _ if !servers.iter().any(|(_, settings)| settings.is_sandboxed()) => None,
            Some(executable) => sandbox::weakness(executable).await,
            None => Some("the path of Nonet's own executable is unknown".into()),
        };
        let reaches = servers.into_iter().filter_map(|(server, settings)| {
            let reach = Self::of(&server, &settings, context, weaker.as_ref())?;
            Some((server, reach))
        });
        reaches.collect()
    }

    fn of(
        server: &str,
        settings: &ServerSettings,
        context: &ConnectionContext,
        weaker: Option<&String>,
    ) -> Option<Self> {
        let Transport::Stdio { command, args, env, inherit_env, cwd, sandbox } = &settings.transport else {
            return None;
        };
        let env = env.iter().map(|(name, value)| (name.as_str(), value.expose()));
        let variables = environment::of_program(inherit_env, sandbox.as_deref(), env);
        let names = variables.keys().map(|name| name.to_string_lossy().into_owned()).collect();
        let Some(of_sandbox) = sandbox else { return Some(Self { sandbox: None, variables: names }) };
        let spec = context.sandboxes.spec(server, of_sandbox, cwd.as_deref(), settings.session.is_none());
        let command: Vec<OsString> = std::iter::once(command).chain(args).map(Into::into).collect();
        let (places, fault) = match sandbox::Places::of(&spec, &command, &variables) {
            Ok(places) => (places, None),
            Err(fault) => (sandbox::Places::default(), Some(fault.to_string())),
        };
        let sandbox = SandboxReach {
            read: places.read,
            write: places.write,
            net: of_sandbox.net.clone(),
            too_broad: places.too_broad,
            sockets: places.sockets,
            limits: sandbox::enforcement(of_sandbox).map(|limits| limits.to_string()),
            weaker: fault.or(weaker.cloned()),
        };
        Some(Self { sandbox: Some(sandbox), variables: names })
    }
}
