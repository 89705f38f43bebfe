//! The clients on this machine: Nonet in their files, and the setup that takes over their servers.

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A client on this machine.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostRow {
    /// Its name for commands.
    pub name: String,
    /// Its name.
    pub title: String,
    /// Its file; `null` without one.
    pub file: Option<PathBuf>,
    /// Whether it is on this machine.
    pub found: bool,
    /// How it reads a changed file.
    pub reload: String,
    /// The entry for Nonet, as its file has it.
    pub entry: String,
    /// Where Nonet is in its file: `absent`, `elsewhere`, `here`, or `other` for another servers.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonet: Option<Cow<'static, str>>,
    /// The servers.toml that the entry names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Why its file cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// The clients on this machine.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostList {
    /// Every client that Nonet knows.
    pub hosts: Vec<HostRow>,
}

/// What would be done to a client's file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostChange {
    /// The file.
    pub file: PathBuf,
    /// What would be done, in words.
    pub told: Vec<String>,
    /// Whether the file would stay as it is.
    pub nothing: bool,
    /// The difference.
    pub diff: String,
    /// Names the change, to apply it.
    pub digest: String,
}

/// The change that was shown, to apply it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Its digest.
    pub digest: String,
}

/// What was done to a client's file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AppliedChange {
    /// What was done, in words.
    pub told: Vec<String>,
    /// The file; `null` if it stays as it was.
    pub file: Option<PathBuf>,
    /// Its backup; `null` without one.
    pub backup: Option<PathBuf>,
}

/// A server that stays with its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemainingServer {
    /// The client.
    pub client: String,
    /// The server's name there.
    pub server: String,
}

/// The user's choices for a setup.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SetupRequest {
    /// The clients to set up; all, if none is named.
    pub clients: Vec<String>,
    /// The servers that stay where they are.
    pub left: Vec<RemainingServer>,
    /// Values of variables that are not set.
    pub values: BTreeMap<String, String>,
    /// Whether the user does not want to be asked before tools of high risk run.
    pub unasked: bool,
    /// The files that the user has seen the changes of.
    pub seen: String,
}

/// A setup before it is made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SetupPlan {
    /// The servers.toml.
    pub file: String,
    /// The clients to set up.
    pub clients: Vec<SetupClientView>,
    /// The clients that stay as they are, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// The servers of the clients.
    pub servers: Vec<SetupServer>,
    /// The variables that are not set: name, purpose, servers.
    pub values: Vec<(String, String, Vec<String>)>,
    /// Where secrets go.
    pub secrets: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Whether servers.toml gets a rule that asks before tools of high risk.
    pub asks_by_risk: bool,
    /// Whether the clients will share one gateway.
    pub shares: bool,
    /// The difference of servers.toml.
    pub diff: String,
    /// Names the files as they are and will be, to make the setup.
    pub seen: String,
}

/// A client of a setup.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SetupClientView {
    /// Its name for commands.
    pub name: String,
    /// Its name.
    pub title: String,
    /// Its file.
    pub file: String,
    /// How many of its servers move.
    pub moves: usize,
    /// Whether its file stays as it is.
    pub is_nothing: bool,
    /// The servers that stay, each with the reason.
    pub stay: Vec<(String, String)>,
    /// The difference of its file.
    pub diff: String,
}

/// A server of a client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SetupServer {
    /// The client.
    pub client: Option<String>,
    /// Its name there.
    pub name: String,
    /// Its name in servers.toml; `null` if it will not be there.
    pub server: Option<String>,
    /// What will be done, in words.
    pub done: String,
    /// Omitted or changed settings, and remarks.
    pub notes: Vec<String>,
    /// The client's own rules for its tools, and what servers.toml has for them.
    pub rules: Vec<MappedRule>,
}

/// A rule of a client, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MappedRule {
    /// The rule, as the client's file has it.
    pub rule: String,
    /// The file.
    pub file: PathBuf,
    /// What servers.toml has for it.
    pub became: String,
}

/// What a setup did.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SetupReport {
    /// The servers.toml.
    pub file: String,
    /// Where secrets went.
    pub secrets: Vec<String>,
    /// The servers that Nonet cannot run yet, each with the reason.
    pub broken: BTreeMap<String, String>,
    /// The clients.
    pub clients: Vec<ClientReport>,
    /// Why the gateway does not use the new servers.toml yet; `null` if it does.
    pub trouble: Option<String>,
    /// The commands that undo the setup.
    pub undo: Vec<String>,
}

/// What a setup did to a client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClientReport {
    /// Its name.
    pub title: String,
    /// What was done, in words.
    pub told: Vec<String>,
    /// The servers that stay, each with the reason.
    pub stay: Vec<(String, String)>,
    /// Why it was not changed; `null` if it was.
    pub fault: Option<String>,
}

/// What undoing a setup did.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UndoReport {
    /// What was done, in words.
    pub told: Vec<String>,
    /// What remains to be done.
    pub trouble: Vec<String>,
}
