//! `nonet check`: the configuration, then each server.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use nonet_api::status::{GatewayStatus, ReplicaStatus, ServerState, ServerStatus};
use nonet_auth::{IssuerCheck, Issuers};
use nonet_config::{Config, ConfigFault, LoadError, LoadedConfig, OnChange, shell};
use nonet_core::Gateway;
use nonet_hosts as hosts;
use nonet_meta as meta;
use nonet_servers::{
    catalog::Tool,
    downstream::{Connection, ConnectionState, DocumentReport, Reach, net_text},
};
use nonet_state::{session::Caller, unmatched::UnmatchedRule};
use nonet_text::{name::RESERVED, results::json_len};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    FAILED, OK, UNUSABLE,
    doctor::{self, Offer},
    gateway, launchers, show,
    signal::stopped,
    status,
};
use crate::serve;

/// Returns an unusable configuration as JSON.
pub(super) fn unusable(unusable: &LoadError) -> Value {
    let faults: Vec<FaultEntry> = unusable.faults().iter().map(FaultEntry::from).collect();
    let mut out = json!({ "usable": false, "faults": faults });
    if faults.is_empty() {
        out["error"] = json!(unusable.to_string());
    }
    out
}

/// A fault of the configuration as JSON.
#[derive(Serialize)]
struct FaultEntry<'a> {
    file: &'a PathBuf,
    line: usize,
    column: usize,
    key: &'a str,
    message: &'a str,
    remedy: &'a str,
    left_out: Option<&'a str>,
}

impl<'a> From<&'a ConfigFault> for FaultEntry<'a> {
    fn from(fault: &'a ConfigFault) -> Self {
        let ConfigFault { file, line, column, key, message, remedy, entry } = fault;
        Self { file, line: *line, column: *column, key, message, remedy, left_out: entry.as_deref() }
    }
}

/// Checks the configuration and every server, and prints the report. Exit code 0: no problems; 1: a server
/// failed; 2: the configuration has faults.
///
/// `offers` gets what `nonet doctor` could mend.
pub(super) async fn run(
    loaded: LoadedConfig,
    as_json: bool,
    verbose: bool,
    offers: Option<&mut Vec<Offer>>,
) -> anyhow::Result<u8> {
    let (faults, exposed) = (loaded.faults.clone(), loaded.warnings.clone());
    let removed = loaded.removed.clone();
    let file = loaded.config.file.clone();
    let disabled = loaded.config.servers.iter().filter(|(_, server)| !server.enabled);
    let disabled: Vec<String> = disabled.map(|(name, _)| name.to_string()).collect();
    let gateway = gateway(loaded, true);
    let config = gateway.servers.config();
    let (launchers, started) = tokio::join!(launchers::versions(&config), show::all_started(&gateway));
    if let Err(code) = started {
        return Ok(code);
    }
    let embedder = match gateway.publisher.embedder() {
        Some(embedder) => embedder
            .ready()
            .await
            .map(|backend| format!("{} ({})", backend.name, backend.detail))
            .map_err(|error| error.to_string()),
        None => Err("not started".into()),
    };
    if embedder.is_ok() {
        tokio::select! {
            () = show::indexing(&gateway, INDEX_WAIT) => {}
            code = stopped() => {
                gateway.stop().await;
                return Ok(code);
            }
        }
    }
    let replicas = replicas(&gateway).await;
    let issuers = match &config.auth {
        Some(auth) => Issuers::new(auth, None).map_err(anyhow::Error::msg)?.look().await,
        None => Vec::new(),
    };
    let mut status = gateway.status(&Caller::default());
    let mut warnings = warnings(&gateway);
    warnings.extend(audit_warning(&status));
    if config.gateway.allow_without_tokens && !config.guarded {
        let message = format!("{}.", serve::WITHOUT_TOKENS);
        warnings.push(Warning { server: "gateway".into(), message, serious: false });
    }
    warnings.extend(auth_warnings(&config, &issuers));
    if config.embedder.onnxruntime.is_some() && config.embedder.model.is_none() {
        let message = "`[embedder] onnxruntime` does nothing without `model`: the built-in model needs no library. Remove the \
                       key, or name a model."
            .into();
        warnings.push(Warning { server: "gateway".into(), message, serious: false });
    }
    if let Some(replicas) = replicas {
        warnings.extend(cluster_warnings(&replicas));
        // Unknown is not the same as none.
        if let Some(cluster) = &mut status.cluster {
            cluster.replicas = replicas.ok();
        }
    }
    if let Some(offers) = offers {
        *offers = doctor::offers(&gateway, &faults).await?;
    }
    let plain_secrets = hosts::plain_secrets(&file)?;
    let report = Report {
        file,
        faults,
        exposed,
        plain_secrets,
        removed,
        disabled,
        launchers,
        embedder,
        status,
        failed: gateway.servers.connections().values().any(|one| !is_well(one)),
        tools: gateway.publisher.snapshot().of_servers().count(),
        definitions: meta::saving(&gateway),
        warnings,
        documents: documents(&gateway),
        issuers,
        reach: gateway.servers.reach().await,
        unmatched: gateway.unmatched(),
    };
    gateway.stop().await;
    let code = report.code();
    match as_json {
        true => raw!("{}", serde_json::to_string_pretty(&report.into_json())?),
        false => report.print(verbose),
    }
    Ok(code)
}

/// How long the check waits for search by meaning: a process that ends while ONNX Runtime computes prints its
/// errors.
const INDEX_WAIT: Duration = Duration::from_secs(10);

/// The result of a check.
struct Report {
    file: PathBuf,
    faults: Vec<ConfigFault>,
    /// Secrets that others can read.
    exposed: Vec<ConfigFault>,
    /// Secrets that servers.toml contains.
    plain_secrets: Vec<ConfigFault>,
    /// Keys of the file that are gone.
    removed: Vec<ConfigFault>,
    disabled: Vec<String>,
    launchers: BTreeMap<&'static str, Option<String>>,
    /// The embedding engine, or why there is none.
    embedder: Result<String, String>,
    status: GatewayStatus,
    /// Whether a server is not ready.
    failed: bool,
    tools: usize,
    /// The size in bytes of all definitions, and of the nine meta-tools.
    definitions: (usize, usize),
    warnings: Vec<Warning>,
    /// The import reports of REST services' documents, by server.
    documents: BTreeMap<Arc<str>, DocumentReport>,
    /// The issuers of `[auth]`, with their keys.
    issuers: Vec<IssuerCheck>,
    /// What locally started servers could access.
    reach: BTreeMap<Arc<str>, Reach>,
    unmatched: Vec<UnmatchedRule>,
}

impl Report {
    fn code(&self) -> u8 {
        let failed = self.failed || !self.exposed.is_empty() || self.warnings.iter().any(|it| it.serious);
        match (self.faults.is_empty(), failed) {
            (false, _) => UNUSABLE,
            (true, true) => FAILED,
            (true, false) => OK,
        }
    }

    fn into_json(self) -> Value {
        let faults = |faults: &[ConfigFault]| json!(faults.iter().map(FaultEntry::from).collect::<Vec<_>>());
        let mut status = self.status;
        for server in &mut status.servers {
            server.missing_variables =
                show::missing_variables(server.last_error.as_deref().unwrap_or_default());
        }
        let mut status = json!(status);
        let warnings = self.warnings.iter().map(|it| json!({ "server": it.server, "message": it.message }));
        let exposed = self.exposed.iter().chain(&self.plain_secrets).chain(&self.removed);
        let exposed = exposed.map(|fault| json!(FaultEntry::from(fault)));
        let rules = self.unmatched.iter().map(|rule| json!({ "key": rule.key, "message": rule.message }));
        status["usable"] = json!(true);
        status["file"] = json!(self.file);
        status["faults"] = faults(&self.faults);
        status["disabled"] = json!(self.disabled);
        status["warnings"] = warnings.chain(exposed).chain(rules).collect();
        if !self.documents.is_empty() {
            status["documents"] = json!(self.documents);
        }
        if !self.issuers.is_empty() {
            let issuers = self.issuers.iter().map(|one| match &one.keys {
                Ok((keys, unused)) => {
                    let mut told = json!({ "issuer": one.issuer, "keys": keys, "keys_not_used": unused });
                    if let Some(Ok(at)) = &one.browser {
                        told["browsers_sign_in_at"] = json!(at);
                    }
                    told
                }
                Err(why) => json!({ "issuer": one.issuer, "error": why }),
            });
            status["issuers"] = issuers.collect();
        }
        if !self.reach.is_empty() {
            status["reach"] = json!(self.reach);
        }
        status["embedder"] = match &self.embedder {
            Ok(backend) => json!({ "backend": backend }),
            Err(error) => json!({ "error": error }),
        };
        status["launchers"] = json!(self.launchers);
        let (whole, nine) = self.definitions;
        status["definitions"] = json!({ "bytes_of_all_tools": whole, "bytes_of_the_nine": nine });
        status
    }

    fn print(&self, verbose: bool) {
        let faults = match self.faults.len() {
            0 => "no faults".into(),
            number => show::count(number as u64, "fault"),
        };
        say!("{}: {faults}", self.file.display());
        for fault in &self.faults {
            let left_out = fault.entry.as_ref().map(|entry| format!(" [{entry}] is left out."));
            say!("  {fault}{}", left_out.unwrap_or_default());
        }
        self.print_servers(verbose);
        if let Some(replicas) = self.status.cluster.as_ref().and_then(|cluster| cluster.replicas.as_ref()) {
            say!("cluster: {} running", show::count(replicas.len() as u64, "replica"));
        }
        for one in &self.issuers {
            if let Ok((keys, unused)) = one.keys {
                let unused = if unused > 0 { format!(", {unused} of no use here") } else { String::new() };
                say!("[auth] {}: {}{unused}", one.issuer, show::count(keys as u64, "key"));
            }
            if let Some(Ok(at)) = &one.browser {
                say!("[auth.page] browsers sign in at {at}");
            }
        }
        for (server, report) in &self.documents {
            say!("{server}: {}", of_document(report, verbose));
        }
        of_reach(&self.reach, verbose).iter().for_each(|line| say!("{line}"));
        self.warnings.iter().for_each(|warning| say!("{}: {}", warning.server, warning.message));
        for server in self.status.servers.iter().filter(|server| server.uis_left_out > 0) {
            say!("{}: {}", server.name, show::uis_left_out(server.uis_left_out));
        }
        self.unmatched.iter().for_each(|rule| say!("warning: {rule}"));
        self.exposed.iter().for_each(|fault| say!("{fault}"));
        self.plain_secrets.iter().chain(&self.removed).for_each(|fault| say!("warning: {fault}"));
        if !self.launchers.is_empty() {
            let launchers = self.launchers.iter().map(|(program, version)| match version {
                Some(version) => format!("{program} {version}"),
                None => format!("{program} (does not run)"),
            });
            say!("started by: {}", launchers.collect::<Vec<_>>().join(", "));
        }
        match &self.embedder {
            Ok(backend) => say!("search by meaning: {backend}"),
            Err(error) => say!("{error}"),
        }
        let (whole, nine) = self.definitions;
        say!(
            "definitions: {whole} bytes for {} (about {} tokens); clients read {nine} bytes (about {} tokens)",
            show::count(self.tools as u64, "tool"),
            whole / 4,
            nine / 4
        );
    }

    fn print_servers(&self, verbose: bool) {
        let mut table = show::plain_table(&["SERVER", "STATE", "STARTED", "PROTOCOL", "TOOLS"]);
        for server in &self.status.servers {
            let started = server.started_ms.map(|ms| format!("{ms} ms")).unwrap_or_default();
            let (version, tools) = (server.version.clone(), server.tools.unwrap_or_default());
            table.add_row([
                server.name.to_string(),
                status::state(server.state),
                started,
                version.unwrap_or_default(),
                tools.to_string(),
            ]);
        }
        for name in &self.disabled {
            table.add_row([name.as_str(), "disabled", "", "", ""]);
        }
        say!("{table}");
        // The fault of a left-out server is printed above.
        let servers = self.status.servers.iter();
        for server in servers.filter(|server| server.state != Some(ServerState::NeedsConfig)) {
            status::say_trouble(server, verbose);
            self.say_missing(server);
        }
    }
}

impl Report {
    /// Prints the variables that a server says it lacks, with the commands that give them.
    fn say_missing(&self, server: &ServerStatus) {
        let name = &server.name;
        for variable in show::missing_variables(server.last_error.as_deref().unwrap_or_default()) {
            let set = shell::nonet(&format!("secret set {variable} --file"), &self.file);
            let doctor = shell::nonet("doctor", &self.file);
            say!(
                "  `{name}` names `{variable}`: `{doctor}` asks for its value; by hand: `{set}`, and `env = {{ {variable} = \
                 \"${{{variable}}}\" }}` in [servers.{name}]"
            );
        }
    }
}

/// Returns the import reports of REST services' documents.
fn documents(gateway: &Gateway) -> BTreeMap<Arc<str>, DocumentReport> {
    let connections = gateway.servers.connections();
    let reports =
        connections.iter().map(|(server, connection)| Some((server.clone(), connection.document()?)));
    reports.flatten().collect()
}

/// Formats the report of a document in one line.
fn of_document(report: &DocumentReport, verbose: bool) -> String {
    let operations = show::count(report.operations as u64, "operation");
    let mut said = match &report.document {
        Some(document) => format!("{operations} of {document}"),
        None => format!("{operations} written by hand"),
    };
    let shown = if verbose { usize::MAX } else { NAMED };
    let left_out = report.left_out.iter();
    if !report.left_out.is_empty() {
        let reasons: Vec<&str> = left_out.take(shown).map(String::as_str).collect();
        let more = report.left_out.len().saturating_sub(shown);
        let more = if more > 0 { format!("; and {more} more, with --verbose") } else { String::new() };
        said = format!("{said}; left out: {}{more}", reasons.join("; "));
    }
    said
}

/// Formats what servers could access: a line per sandbox, and one for all servers without.
fn of_reach(reach: &BTreeMap<Arc<str>, Reach>, verbose: bool) -> Vec<String> {
    let listed = |paths: &std::collections::BTreeSet<PathBuf>, none: &str| match paths.is_empty() {
        true => none.to_string(),
        false => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
    };
    let variables = |reach: &Reach| match verbose {
        true => reach.variables.iter().cloned().collect::<Vec<_>>().join(", "),
        false => reach.variables.len().to_string(),
    };
    let mut lines = Vec::new();
    for (server, reach) in reach {
        let Some(sandbox) = &reach.sandbox else { continue };
        lines.push(format!(
            "{server}: sandbox; reads the system, interpreters and {}; writes {}; network: {}; variables: {}",
            listed(&sandbox.read, "nothing else"),
            listed(&sandbox.write, "its own home folder only"),
            net_text(&sandbox.net),
            variables(reach)
        ));
        if !sandbox.too_broad.is_empty() {
            let paths = listed(&sandbox.too_broad, "");
            lines.push(format!(
                "{server}: its command names {paths}, which its sandbox does not open: list what it needs in `read` or `write`"
            ));
        }
        if !sandbox.sockets.is_empty() {
            let paths = listed(&sandbox.sockets, "");
            lines.push(format!(
                "{server}: its sandbox closes the sockets {paths}, which lead to other programs: name one in `read` if the server needs it"
            ));
        }
        if let Some(limits) = &sandbox.limits {
            lines.push(format!("{server}: limits: {limits}"));
        }
        if let Some(why) = &sandbox.weaker {
            lines.push(format!("{server}: its sandbox is incomplete: {why}"));
        }
    }
    let open: Vec<_> = reach.iter().filter(|(_, reach)| reach.sandbox.is_none()).collect();
    if !open.is_empty() {
        let names: Vec<&str> = open.iter().map(|(server, _)| &***server).collect();
        lines.push(format!(
            "no sandbox: {} (reach what you can: files, network, processes)",
            names.join(", ")
        ));
        if verbose {
            lines.extend(
                open.iter().map(|(server, reach)| format!("{server}: variables: {}", variables(reach))),
            );
        }
    }
    lines
}

/// A remark about a server's tools for its user.
struct Warning {
    server: String,
    message: String,
    /// Whether the warning makes the check fail.
    serious: bool,
}

/// The size in bytes from which a definition causes a warning: about 2,500 tokens wherever it is listed.
const LARGE_DEFINITION: usize = 10_000;
/// How many tools a warning names.
const NAMED: usize = 3;

/// Returns warnings about sign-ins.
fn auth_warnings(config: &Config, issuers: &[IssuerCheck]) -> Vec<Warning> {
    let warning = |message: String, serious| Warning { server: "[auth]".into(), message, serious };
    let of_issuer = |one: &IssuerCheck| match &one.keys {
        Err(why) => Some(warning(format!("nobody can sign in with {}: {why}", one.issuer), true)),
        Ok((0, _)) => Some(warning(format!("{} has no key that can be used here", one.issuer), true)),
        Ok(_) => None,
    };
    let of_browser = |one: &IssuerCheck| match &one.browser {
        Some(Err(why)) => {
            let message = format!("nobody can sign in with a browser at {}: {why}", one.issuer);
            Some(Warning { server: "[auth.page]".into(), message, serious: true })
        }
        _ => None,
    };
    let browsers = issuers.iter().filter_map(of_browser);
    let all = config.auth.as_ref().filter(|auth| !auth.sorts_people).map(|_| {
        let message = "whoever can sign in gets every tool: set `profile` in [auth], or `claims` or `scopes` in profiles";
        warning(message.into(), false)
    });
    issuers.iter().filter_map(of_issuer).chain(browsers).chain(all).collect()
}

/// Whether a server works as it should: people sign in by themselves where they have accounts of their own.
fn is_well(connection: &Connection) -> bool {
    match connection.state() {
        ConnectionState::Ready { .. } => true,
        ConnectionState::AuthRequired { .. } => connection.settings().credentials.are_personal(),
        _ => false,
    }
}

/// Returns the warning about an audit log that cannot be written.
fn audit_warning(status: &GatewayStatus) -> Option<Warning> {
    let error = status.audit.as_ref()?.error.as_ref()?;
    Some(Warning {
        server: "[audit]".into(),
        message: format!("the audit log cannot be written: {error}"),
        serious: true,
    })
}

/// Returns the running replicas, each with whether its configuration differs from the checked one; the error
/// of Redis; or none without a cluster.
async fn replicas(gateway: &Gateway) -> Option<Result<Vec<ReplicaStatus>, String>> {
    let cluster = gateway.keeping.cluster.as_ref()?.replicas();
    if let Err(error) = cluster.look().await {
        return Some(Err(error.to_string()));
    }
    let digest = gateway.servers.config().digest.clone();
    let all = cluster.known();
    let shown = all.iter().map(|replica| ReplicaStatus {
        name: replica.name.clone(),
        address: replica.address.clone(),
        version: replica.version.clone(),
        leaving: replica.leaving,
        other_config: replica.config != digest,
    });
    Some(Ok(shown.collect()))
}

/// Returns warnings about differences between the running replicas and this check.
fn cluster_warnings(replicas: &Result<Vec<ReplicaStatus>, String>) -> Vec<Warning> {
    let warning = |serious, message| Warning { server: "[cluster]".into(), message, serious };
    let all = match replicas {
        Ok(all) => all,
        Err(error) => {
            return vec![warning(true, format!("the replicas' shared data cannot be read: {error}"))];
        }
    };
    let mut warnings = Vec::new();
    for replica in all {
        let who = format!("the replica {} at {}", replica.name, replica.address);
        if replica.other_config {
            let message = format!(
                "{who} uses a different servers.toml: copy the same file to every replica; a change of [cluster] \
                 also needs a restart"
            );
            warnings.push(warning(true, message));
        }
        let version = &replica.version;
        if version != env!("CARGO_PKG_VERSION") {
            warnings.push(warning(
                false,
                format!("{who} runs Nonet {version}, this is {}", env!("CARGO_PKG_VERSION")),
            ));
        }
    }
    warnings
}

/// Returns the warnings about the tools of every server.
fn warnings(gateway: &Gateway) -> Vec<Warning> {
    let snapshot = gateway.publisher.snapshot();
    let mut all = Vec::new();
    for (server, entry) in snapshot.catalog.servers().iter().filter(|(name, _)| !RESERVED.contains(&&***name))
    {
        let tools: Vec<&Arc<Tool>> =
            entry.tools.iter().filter_map(|full| snapshot.catalog.get(full)).collect();
        let mut warn = |serious: bool, what: &str, of: Vec<&Arc<Tool>>| {
            if of.is_empty() {
                return;
            }
            let names: Vec<&str> = of.iter().take(NAMED).map(|tool| &*tool.name).collect();
            let more =
                if of.len() > NAMED { format!(" and {} more", of.len() - NAMED) } else { String::new() };
            let what = match of.len() {
                1 => what.replacen("have ", "has ", 1).replacen("are ", "is ", 1),
                _ => what.to_owned(),
            };
            let of = format!("{} of {}", of.len(), show::count(tools.len() as u64, "tool"));
            let message = format!("{of} {what}: {}{more}", names.join(", "));
            all.push(Warning { server: server.to_string(), message, serious });
        };
        let which = |wrong: &dyn Fn(&Tool) -> bool| -> Vec<&Arc<Tool>> {
            tools.iter().copied().filter(|tool| wrong(tool)).collect()
        };
        warn(
            false,
            "have no description, so search knows only their names",
            which(&|tool| tool.description.is_empty()),
        );
        let command = shell::nonet(&format!("trust {}", shell::word(server)), &gateway.servers.config().file);
        for (effect, what) in [(OnChange::Hold, "are held back"), (OnChange::Deny, "are hidden")] {
            let is_kept = |tool: &Tool| tool.change.as_ref().is_some_and(|change| change.effect == effect);
            let what = format!("{what} by `on_change` until you trust their definitions (`{command}`)");
            warn(false, &what, which(&is_kept));
        }
        let plain = |tool: &Tool| *tool.wire == tool.full.replacen('.', "__", 1);
        warn(false, "are listed to clients under a shortened or changed name", which(&|tool| !plain(tool)));
        warn(
            true,
            "have an unusable schema, so their params go unchecked",
            which(&|tool| tool.schema.broken().is_some()),
        );
        let taken = |tool: &Tool| snapshot.catalog.clash(&tool.full).is_some();
        warn(
            false,
            "have the name of a tool of another server or of Nonet, so only their full names work",
            which(&taken),
        );
        let large = |tool: &Tool| json_len(&tool.definition) > LARGE_DEFINITION;
        warn(false, "have a definition of more than 10,000 bytes", which(&large));
    }
    all
}
