//! `servers.toml`: reads it, checks everything, and returns a [`Config`] or every fault at once.
//!
//! The types are the source of truth. Their JSON Schema (also printed by `nonet schema`) validates a file;
//! serde reads what remains valid. The pipeline: `read` (TOML to JSON with line numbers; `${VAR}`,
//! `${keyring:NAME}`) -> `explain` and `check` (faults) -> faulty entries removed -> types. This room touches
//! only the file and the `secrets.env` beside it: no network, no process. The keyring is the caller's.

mod addresses;
mod apps;
mod audit;
mod auth;
mod check;
mod clients;
mod cluster;
mod endpoints;
mod expand;
mod explain;
mod fault;
mod groups;
pub mod keyring;
mod left_out;
mod limits;
mod losses;
mod one_server;
mod outline;
mod paths;
mod quotas;
mod rate;
mod read;
mod reference;
mod registry;
mod removed;
mod rest;
mod rules;
mod sandbox;
mod secret_commands;
pub mod secrets_file;
pub mod select;
pub mod shell;
pub mod workflow;

mod schema;
mod servers;
mod values;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

pub use addresses::AddressRange;
pub use apps::{
    App, AppKind, AppModel, Ask, ForEach, ITEMS_AT_A_TIME, ModelApp, ModelEndpoint, RetryRule, Step, StepKind,
};
pub use audit::{AuditExportSettings, AuditFormat, AuditSettings, AuditSync, OnAuditFailure};
pub use auth::{AuthSettings, ClaimValues, Issuer, JwtAlgorithm, PageSettings, RoleRule};
pub use check::APPS_DEEP;
pub use clients::{ClientLimits, ClientSettings};
pub use cluster::{ClusterSettings, RedisAddresses, RedisUrl, ReplicaAddress};
pub use endpoints::Endpoint;
pub use expand::ValueSources;
pub use fault::{ConfigFault, ConfigNotFound, LoadError};
pub use groups::{
    ApprovalHook, ApproveBy, Category, GatewaySettings, NewServers, Outlet, PolicyRule, Profile,
    ToolInjection,
};
pub use left_out::UnusableEntry;
pub use limits::LimitSettings;
pub use losses::losses;
pub use nonet_api::tools::{OnChange, Policy, Risk};
pub use one_server::toml_value;
pub use one_server::{OneServer, server_of};
pub use outline::{OutlineEntry, outline};
pub use paths::{LOCK_FILE, lock_file_beside};
pub use quotas::{QuotaSettings, Quotas};
pub use rate::Rate;
pub use reference::reference;
pub use registry::RegistrySettings;
pub use rest::{OpenApi, RestSettings};
pub use rules::OF_REST;
pub use sandbox::{HostPort, Network, SandboxSettings};
pub use schema::schema;
pub use secret_commands::{SecretCommand, changed as secrets_changed};
pub use servers::{
    Expose, Grant, OAuth, OnInjection, OnLeak, Placement, ServerCredentials, ServerScope, ServerSettings,
    SetupCall, TokenExchange, ToolOverride, Transport,
};
pub use values::{BearerToken, Globs, Priorities, Secret};

use crate::secrets_file::SecretsFile;
use expand::Env;
pub use expand::{TextPiece, closing_brace, pieces};
use nonet_base::{files, text::hex};
use nonet_search as search;
use nonet_text::name::ServerName;
use paths::{Paths, home};
pub use read::written_key;
use read::{ConfigSource, FaultSide, join};
pub use schema::{header_name, header_value, http_url};
pub use values::time::LONGEST as LONGEST_TIME;

/// The name of the file.
pub const FILE_NAME: &str = "servers.toml";
/// The key of [`GatewaySettings::allow_without_tokens`], which requires no tokens.
const WITHOUT_TOKENS: &str = "allow_without_tokens";
/// The largest file accepted, in bytes.
const MAX_BYTES: usize = 4 << 20;

/// A whole config. All its values are checked, and all its paths absolute.
#[derive(Clone, Debug)]
pub struct Config {
    /// The config's file.
    pub file: PathBuf,
    /// The SHA-256 of the file's text, as hex digits.
    pub digest: String,
    /// The gateway itself.
    pub gateway: GatewaySettings,
    /// Whose access tokens open the gateway over HTTP, if anybody's.
    pub auth: Option<AuthSettings>,
    /// The audit log, if any.
    pub audit: Option<AuditSettings>,
    /// The cluster that this gateway is a replica of, if any.
    pub cluster: Option<ClusterSettings>,
    /// Whether the file has bearer tokens, even in a left-out entry, or issuers of tokens: then every HTTP
    /// request needs one.
    pub guarded: bool,
    /// What one token or session may use at the same time, unless a profile overrides it.
    pub quotas: QuotaSettings,
    /// Limits of messages and connections.
    pub limits: LimitSettings,
    /// The sandbox of servers without their own setting.
    pub sandbox: Option<SandboxSettings>,
    /// Where servers are found.
    pub registry: RegistrySettings,
    /// The sentence embedder and the index.
    pub embedder: search::Settings,
    /// The servers, including disabled ones.
    pub servers: BTreeMap<ServerName, ServerSettings>,
    /// The servers left out because of their own faults, by their names in the file.
    pub left_out: BTreeMap<String, UnusableEntry>,
    /// The apps left out because of their own faults.
    pub left_out_apps: BTreeMap<String, UnusableEntry>,
    /// Groups of tools, in addition to one per server.
    pub categories: BTreeMap<String, Category>,
    /// What particular clients may see.
    pub profiles: BTreeMap<String, Profile>,
    /// What happens when certain tools are called.
    pub policies: BTreeMap<String, PolicyRule>,
    /// The limits of clients: the built-in table, updated by the file.
    pub clients: BTreeMap<String, ClientSettings>,
    /// The apps that `call_app` runs.
    pub apps: BTreeMap<String, App>,
}

/// A bearer token of the configuration.
#[derive(Clone, Debug)]
pub struct KnownToken {
    /// Its digest.
    pub token: BearerToken,
    /// Its place in the file, such as `profiles.reader.tokens[0]`.
    pub place: Arc<str>,
}

impl Config {
    /// Returns the file's description of a server or a group.
    pub fn about(&self, name: &str) -> Option<&str> {
        let server = self.servers.iter().find(|(server, _)| server.as_str() == name);
        match server {
            Some((_, settings)) => settings.description.as_deref(),
            None => self.categories.get(name).map(|group| group.description.as_str()),
        }
    }

    /// Whether a token is one of the configuration.
    pub fn has_token(&self, token: BearerToken) -> bool {
        let mut profiles = self.profiles.values();
        self.gateway.tokens.contains(&token) || profiles.any(|profile| profile.tokens.contains(&token))
    }

    /// Returns the configuration's entry for a token.
    pub fn known_token(&self, token: BearerToken) -> Option<KnownToken> {
        let profiles =
            self.profiles.iter().map(|(name, profile)| (format!("profiles.{name}"), &profile.tokens));
        let places = std::iter::once(("gateway".to_owned(), &self.gateway.tokens)).chain(profiles);
        places.into_iter().find_map(|(owner, tokens)| {
            let index = tokens.iter().position(|known| *known == token)?;
            Some(KnownToken { token, place: format!("{owner}.tokens[{index}]").into() })
        })
    }
}

/// A usable configuration; some entries of the file may be missing.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The usable part. A profile or category may name a server that was left out.
    pub config: Config,
    /// Why entries were left out, by line; each fault names its `entry`, except a fault of `secrets.env`.
    pub faults: Vec<ConfigFault>,
    /// Problems without consequences for entries: secrets that others can read.
    pub warnings: Vec<ConfigFault>,
    /// The file's keys that are gone, with what to write instead.
    pub removed: Vec<ConfigFault>,
    /// Whether the use of the file depends on the user's trust.
    pub trust: FileTrust,
}

/// Whether the use of a file depends on the user's trust in its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileTrust {
    /// The user has named the file, or it is the user's own.
    #[default]
    NotNeeded,
    /// The file was found in the current folder, and the user trusts this text.
    Given,
    /// The file was found in the current folder, and the user has trusted another text of it.
    Lost,
}

impl LoadedConfig {
    /// Returns what the user is told although every entry can be used.
    pub fn remarks(&self) -> impl Iterator<Item = &ConfigFault> {
        self.warnings.iter().chain(&self.removed)
    }

    /// Returns the entries that are left out, such as `servers.files`.
    pub fn left_out(&self) -> BTreeSet<&str> {
        self.faults.iter().filter_map(|fault| fault.entry.as_deref()).collect()
    }
}

/// Reads and checks a file. `sources` supply the environment and the keyring; a variable missing in the
/// environment is looked up in `secrets.env` beside the file.
pub fn load(file: &Path, sources: ValueSources) -> Result<LoadedConfig, LoadError> {
    let text = read_text(file).map_err(|source| LoadError::Unreadable { file: file.into(), source })?;
    load_text(&text, file, sources)
}

/// Returns the text of a file, even of an unusable one.
pub fn read_text(file: &Path) -> io::Result<String> {
    let bytes = files::read_at_most(file, MAX_BYTES)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Checks the text of a file, with the `secrets.env` beside it. `sources` are as for [`load`].
pub fn load_text(text: &str, file: &Path, sources: ValueSources) -> Result<LoadedConfig, LoadError> {
    let path = secrets_file::beside(file);
    let at = |line: usize, message: String, remedy: String| ConfigFault {
        file: path.clone(),
        line,
        column: 1,
        key: String::new(),
        message,
        remedy,
        entry: None,
    };
    let (secrets, told) = match SecretsFile::read(&path) {
        Ok(secrets) => {
            let faults = secrets.faults.iter();
            let told =
                faults.map(|fault| at(fault.line, fault.message.clone(), fault.remedy.into())).collect();
            (secrets, told)
        }
        Err(error) => {
            let remedy = "Its secrets are unavailable until the file can be read.".to_string();
            (SecretsFile::default(), vec![at(1, format!("cannot read the file: {error}"), remedy)])
        }
    };
    match parse_with(text, file, sources, &secrets) {
        Ok(mut loaded) => {
            loaded.faults.extend(told);
            if secrets.is_open {
                let remedy = format!("Run `chmod 600 '{}'`.", path.display());
                loaded.warnings.push(at(1, "others on this machine can read these secrets".into(), remedy));
            }
            Ok(loaded)
        }
        // An unreadable secret may be the cause of the fatal fault.
        Err(LoadError::Faults(faults)) => Err(LoadError::Faults(faults.into_iter().chain(told).collect())),
        Err(error) => Err(error),
    }
}

/// Checks a text as if it were in `file`, which need not exist.
pub fn parse(text: &str, file: &Path, sources: ValueSources) -> Result<LoadedConfig, LoadError> {
    parse_with(text, file, sources, &SecretsFile::default())
}

/// Checks a text with the variables of a `secrets.env`.
pub fn parse_with(
    text: &str,
    file: &Path,
    sources: ValueSources,
    secrets: &SecretsFile,
) -> Result<LoadedConfig, LoadError> {
    let mut written = read::read(text, file, sources, secrets)?;
    let mut faults = std::mem::take(&mut written.faults);
    let removed = removed::carry_over(&mut written);
    faults.extend(explain::check(&written));
    faults.extend(check::check(&written, &faults));
    let mut config =
        Assembler { paths: Paths::new(file, sources.env), written: &written, faults: &mut faults }
            .config(file);
    faults.sort_by(|a, b| (a.line, a.column, &a.key).cmp(&(b.line, b.column, &b.key)));
    config.digest = hex(&Sha256::digest(text));
    config.left_out = left_out::left_out(&written, &faults, "servers");
    config.left_out_apps = left_out::left_out(&written, &faults, "apps");
    if faults.iter().any(|fault| fault.entry.is_none()) {
        return Err(LoadError::Faults(faults));
    }
    Ok(LoadedConfig { config, faults, warnings: Vec::new(), removed, trust: FileTrust::default() })
}

/// Whether a text has a `[cluster]` table, even a faulty one.
pub fn has_cluster(text: &str) -> bool {
    toml_edit::Document::parse(text).is_ok_and(|document| document.as_table().contains_key("cluster"))
}

/// Expands the `${VAR}`s of a text, or returns the reason and the remedy.
pub fn expand(text: &str, sources: ValueSources) -> Result<String, String> {
    let texts = expand::TextSources { env: sources.env, keyring: sources.keyring, secret: &|_, _| None };
    expand::expand(text, texts).map_err(|troubles| {
        let told: Vec<String> =
            troubles.iter().map(|trouble| format!("{trouble}. {}", trouble.remedy())).collect();
        told.join(" ")
    })
}

/// Returns the file to use: the named one, else the user's own. A `servers.toml` in the current folder may be
/// somebody else's, so only the command line decides about it.
pub fn find(named: Option<&Path>) -> Result<PathBuf, ConfigNotFound> {
    let file = named.map(Path::to_path_buf).or_else(user_file);
    match file {
        Some(file) if file.exists() => Ok(file),
        looked_at => Err(ConfigNotFound { looked_at, named: named.is_some() }),
    }
}

/// Whether the file as written has bearer tokens, or issuers of tokens. A misspelt key counts: its author wants no open access.
fn asks_for_tokens(root: &Value) -> bool {
    let asks = |table: &Value| {
        let mut members = table.as_object().into_iter().flatten();
        members.any(|(key, value)| {
            key.to_lowercase().contains("tok")
                && key != WITHOUT_TOKENS
                && value.as_array().is_none_or(|tokens| !tokens.is_empty())
        })
    };
    let profiles = root.get("profiles").and_then(Value::as_object);
    root.get("auth").is_some()
        || root.get("gateway").is_some_and(asks)
        || profiles.into_iter().flatten().any(|(_, profile)| asks(profile))
}

/// Returns the path of the user's own file, `nonet/servers.toml` in `$XDG_CONFIG_HOME` or `~/.config`. It may
/// not exist.
pub fn user_file() -> Option<PathBuf> {
    own_place(&|name| std::env::var(name).ok())
}

fn own_place(env: Env) -> Option<PathBuf> {
    let configs = env("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .or_else(|| home(env).map(|home| home.join(".config")));
    configs.map(|folder| folder.join("nonet").join(FILE_NAME))
}

/// Converts the written values into types, leaving out faulty entries.
struct Assembler<'a> {
    paths: Paths,
    written: &'a ConfigSource,
    faults: &'a mut Vec<ConfigFault>,
}

impl Assembler<'_> {
    fn config(mut self, file: &Path) -> Config {
        let mut gateway: GatewaySettings = self.table("gateway");
        for skills in &mut gateway.skills {
            *skills = self.paths.resolve(skills);
        }
        if let Some(program) = gateway.notify.as_mut().and_then(|notify| notify.command.first_mut()) {
            *program = Secret::new(self.paths.program(program.expose()));
        }
        let quotas = self.table("quotas");
        let mut audit: Option<AuditSettings> =
            self.written.value.get("audit").is_some().then(|| self.table("audit"));
        if let Some(folder) = audit.as_mut().and_then(|audit| audit.folder.as_mut()) {
            *folder = self.paths.resolve(folder);
        }
        for export in audit.iter_mut().flat_map(|audit| audit.export.values_mut()) {
            export.decide();
            if let Some(file) = &mut export.file {
                *file = self.paths.resolve(file);
            }
        }
        let auth = self.written_table::<auth::AuthTable>("auth");
        let public_url = gateway.public_url.as_deref().unwrap_or_default();
        let sorts_people = auth::sorts_people(&self.written.value);
        let exchanges = auth::exchanges(&self.written.value);
        let auth = auth.map(|auth| auth.into_settings(public_url, sorts_people, exchanges));
        let cluster = self.written_table("cluster");
        let mut embedder: search::Settings = self.table("embedder");
        for path in [&mut embedder.onnxruntime, &mut embedder.model, &mut embedder.cache] {
            *path = path.take().map(|path| self.paths.resolve(&path));
        }
        let limits: LimitSettings = self.table("limits");
        let messages = limits.messages();
        let mut servers: BTreeMap<String, servers::ServerTable> = self.entries("servers");
        let profiles: BTreeMap<String, Profile> = self.entries("profiles");
        let shows_ui = gateway.ui || profiles.values().any(|profile| profile.ui == Some(true));
        for server in servers.values_mut() {
            server.inherit_env = server.inherit_env.with(&gateway.inherit_env);
            server.sandbox = server.sandbox.take().or_else(|| gateway.sandbox.clone());
            server.settings.ui = shows_ui;
            server.settings.min_protocol = server.settings.min_protocol.or(gateway.min_protocol);
        }
        let mut apps: BTreeMap<String, App> = BTreeMap::new();
        for (id, table) in self.entries::<apps::AppTable>("apps") {
            let mut app = table.into_app();
            if let AppKind::Script { file } = &mut app.kind {
                *file = self.paths.resolve(file);
            }
            apps.insert(id, app);
        }
        Config {
            file: file.into(),
            sandbox: gateway.sandbox.clone().and_then(|sandbox| sandbox.into_settings(&self.paths)),
            digest: String::new(),
            gateway,
            auth,
            audit,
            cluster,
            guarded: asks_for_tokens(&self.written.value),
            quotas,
            limits,
            registry: self.table("registry"),
            embedder,
            servers: servers
                .into_iter()
                .filter_map(|(name, table)| {
                    let secrets = self.written.secrets(&join("/servers", &name)).map(Secret::new).collect();
                    Some((ServerName::new(&name).ok()?, table.into_server(&self.paths, secrets, messages)))
                })
                .collect(),
            left_out: BTreeMap::new(),
            left_out_apps: BTreeMap::new(),
            categories: self.entries("categories"),
            profiles,
            policies: self.entries("policies"),
            clients: clients::joined(self.entries("clients")),
            apps,
        }
    }

    /// Returns a table such as `[gateway]`: its default if it has a fault, which is fatal anyway.
    fn table<T: DeserializeOwned + Default>(&mut self, name: &str) -> T {
        self.written_table(name).unwrap_or_default()
    }

    /// Returns a table such as `[cluster]`; none if it is missing or faulty.
    fn written_table<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let faulty = self.faults.iter().any(|fault| fault.entry.is_none() && fault.key.starts_with(name));
        let value = self.written.without_left_out(name, self.faults).filter(|_| !faulty)?;
        self.read(&join("", name), &value)
    }

    /// Returns the valid entries of a table such as `[servers.*]`.
    fn entries<T: DeserializeOwned>(&mut self, name: &str) -> BTreeMap<String, T> {
        let none = Map::new();
        let table = self.written.value.get(name).and_then(Value::as_object).unwrap_or(&none);
        let mut entries = BTreeMap::new();
        for (key, value) in table {
            let pointer = join(&join("", name), key);
            let entry = self.written.entry(&pointer);
            if self.faults.iter().any(|fault| fault.entry == entry) {
                continue;
            }
            if let Some(value) = self.read(&pointer, value) {
                entries.insert(key.clone(), value);
            }
        }
        entries
    }

    /// Deserializes a value. After the schema check, serde fails on next to nothing (`1.0` where `1` is
    /// meant).
    fn read<T: DeserializeOwned>(&mut self, pointer: &str, value: &Value) -> Option<T> {
        T::deserialize(value)
            .map_err(|error| {
                let remedy = "Run `nonet schema` for the expected form.";
                self.faults.push(self.written.fault(
                    pointer,
                    FaultSide::Key,
                    error.to_string(),
                    remedy.into(),
                ));
            })
            .ok()
    }
}

#[cfg(test)]
mod tests;
