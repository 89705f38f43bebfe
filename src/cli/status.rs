//! `nonet status`: shows the running gateway, else the last lists of the servers.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use nonet_api::{
    fault::FaultCode,
    page::GatewayAbout,
    status::{ClientProtocol, Latency, ProcessStatus, ServeMode, ServerState, ServerStatus, SharedStore},
};
use nonet_base::text;
use nonet_core::inquiry::{CLIENT, Inquiry};
use serde::Serialize;
use serde_json::json;

use super::{
    FAILED, OK, UNUSABLE,
    args::GatewayArgs,
    ask::{self, AskFailure},
    connect, elsewhere,
    found::{self, FoundFile},
    reload, show,
    show::{WordStyle, paint},
    signal::stopped,
    usable,
};
use nonet_bridge::RunningGateway;

/// The interval between requests with `--follow`.
const EVERY: Duration = Duration::from_secs(1);
/// What is known of the gateway of a servers.toml, and of the user's other gateways.
#[derive(Clone, Default, PartialEq, Serialize)]
struct StatusReport {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    gateway: Option<ProcessStatus>,
    running: bool,
    /// The last lists, if no gateway is running.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    last: Option<LastLists>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gateways: Vec<GatewayAbout>,
}

/// What the servers had listed.
#[derive(Clone, PartialEq, Serialize)]
struct LastLists {
    file: PathBuf,
    servers: Vec<ServerStatus>,
    disabled: Vec<String>,
}

/// How to show the status.
pub(super) struct StatusArgs {
    pub json: bool,
    pub follow: bool,
    pub way: GatewayArgs,
}

/// Shows the status. Exit code 1: no gateway is running.
pub(super) async fn run(
    config: Option<&Path>,
    profile: Option<String>,
    wanted: StatusArgs,
) -> anyhow::Result<u8> {
    // Listens all the time: a signal between two waits would be lost.
    tokio::select! {
        biased;
        code = stopped() => Ok(code),
        code = show_it(config, profile, wanted) => code,
    }
}

async fn show_it(config: Option<&Path>, profile: Option<String>, wanted: StatusArgs) -> anyhow::Result<u8> {
    let mut before = None;
    let found = match wanted.way.url {
        Some(_) => None,
        None => Some(found::find(config)?),
    };
    loop {
        let mut status = match ask_for_it(found.as_ref(), profile.clone(), &wanted).await? {
            Ok(status) => status,
            Err(code) => return Ok(code),
        };
        if found.is_some() {
            status.gateways = elsewhere::gateways().await;
        }
        let news = without_restless(&status);
        if before.as_ref() != Some(&news) {
            match (wanted.json, wanted.follow) {
                (true, true) => show::raw(&json!(status).to_string()),
                (true, false) => show::whole(&status)?,
                (false, _) => {
                    if before.is_some() {
                        say!("");
                    }
                    print(&status, wanted.way.verbose);
                }
            }
            before = Some(news);
        }
        if !wanted.follow {
            return Ok(if status.running { OK } else { FAILED });
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Returns the status, or the exit code if there is none.
async fn ask_for_it(
    found: Option<&FoundFile>,
    profile: Option<String>,
    wanted: &StatusArgs,
) -> anyhow::Result<Result<StatusReport, u8>> {
    let way = &wanted.way;
    let running = match found {
        None => {
            let url = way.url.as_deref().unwrap_or_default();
            RunningGateway::at(connect::target(url, &way.header, profile.as_deref())?, CLIENT)?
        }
        Some(found) => match ask::running(&found.path, profile.clone()).await {
            Some(running) => running,
            None => return Ok(last_known(found, profile.as_deref(), wanted.json)?.ok_or(UNUSABLE)),
        },
    };
    match ask::inquire(running, &Inquiry::Status).await {
        Ok(Ok(status)) => {
            let gateway = Some(show::read(&status)?);
            Ok(Ok(StatusReport { gateway, running: true, ..StatusReport::default() }))
        }
        Ok(Err(fault)) => {
            show::tell_fault(&fault, show::OutputStyle { json: wanted.json, verbose: way.verbose });
            Ok(Err(FAILED))
        }
        Err(AskFailure::Unanswered(error)) if error.is_unknown_method() => {
            let message = "the running gateway is a different version of Nonet: run `nonet restart`";
            show::refuse(FaultCode::UpstreamError, message, wanted.json);
            Ok(Err(FAILED))
        }
        Err(other) => Ok(Err(ask::told(other, wanted.json)?)),
    }
}

/// Returns the last lists of a configuration's servers without starting any; none if the configuration is
/// unusable.
fn last_known(
    found: &FoundFile,
    profile: Option<&str>,
    as_json: bool,
) -> anyhow::Result<Option<StatusReport>> {
    let Some(loaded) = usable(found, profile, as_json)? else { return Ok(None) };
    let left_out = loaded.config.left_out.clone();
    let disabled = loaded.config.servers.iter().filter(|(_, server)| !server.enabled);
    let disabled: Vec<String> = disabled.map(|(name, _)| name.to_string()).collect();
    let gateway = super::gateway(loaded, false);
    let counts = gateway.publisher.last_counts();
    let servers = gateway.publisher.last_seen().into_iter().map(|(name, seen)| {
        let listed = seen.listed.zip(counts.get(&name));
        let (failed_s, last_error) = seen.failed.map(|(age, error)| (age.as_secs(), error)).unzip();
        ServerStatus {
            tools: listed.map(|(_, count)| *count),
            listed_s: listed.map(|(age, _)| age.as_secs()),
            last_error,
            failed_s,
            ..ServerStatus::new(name)
        }
    });
    let needing = left_out.iter().map(|(name, left_out)| ServerStatus {
        state: Some(ServerState::NeedsConfig),
        last_error: Some(left_out.why()),
        ..ServerStatus::new(name.as_str().into())
    });
    let servers: Vec<ServerStatus> = servers.chain(needing).collect();
    let file = std::path::absolute(&found.path).unwrap_or_else(|_| found.path.clone());
    Ok(Some(StatusReport { last: Some(LastLists { file, servers, disabled }), ..StatusReport::default() }))
}

/// Returns a status without its constantly changing members.
fn without_restless(status: &StatusReport) -> StatusReport {
    let mut status = status.clone();
    let calm = |servers: &mut Vec<ServerStatus>| {
        servers.iter_mut().for_each(|server| (server.listed_s, server.failed_s) = (None, None));
    };
    if let Some(ProcessStatus { gateway, process }) = &mut status.gateway {
        (gateway.uptime_s, gateway.latency, gateway.mean_us) = (0, Latency::default(), None);
        calm(&mut gateway.servers);
        process.iter_mut().flat_map(|process| &mut process.tasks).for_each(|task| task.elapsed_ms = 0);
    }
    status.last.iter_mut().for_each(|last| calm(&mut last.servers));
    status.gateways.iter_mut().for_each(|gateway| gateway.uptime_s = 0);
    status
}

fn print(status: &StatusReport, verbose: bool) {
    if let Some(running) = &status.gateway {
        print_running(running);
        print_servers(&running.gateway.servers);
        running.gateway.servers.iter().for_each(|server| say_trouble(server, verbose));
    }
    if let Some(last) = &status.last {
        print_last(last);
        last.servers.iter().for_each(|server| say_trouble(server, verbose));
    }
    print_others(status);
}

fn print_servers(servers: &[ServerStatus]) {
    let mut columns = vec!["SERVER", "STATE", "TOOLS", "PROTOCOL", "RESTARTS", "CALLS NOW"];
    let has_places = servers.iter().any(|server| server.runs_at.is_some());
    columns.extend(has_places.then_some("RUNS AT"));
    let mut table = show::plain_table(&columns);
    let some = |number: u64| if number == 0 { String::new() } else { number.to_string() };
    for server in servers {
        let mut row = vec![
            server.name.to_string(),
            state(server.state),
            server.tools.unwrap_or_default().to_string(),
            server.version.clone().unwrap_or_default(),
            some(server.restarts),
            some(server.calls_running),
        ];
        row.extend(has_places.then(|| server.runs_at.clone().unwrap_or_default()));
        table.add_row(row);
    }
    say!("{table}");
}

fn print_last(last: &LastLists) {
    say!("No shared gateway is running for {}.\n", last.file.display());
    reload::tell_refused(&last.file);
    let mut table = show::plain_table(&["SERVER", "TOOLS", "LISTED"]);
    for server in &last.servers {
        let listed = || match server.listed_s {
            Some(seconds) => format!("{} ago", show::age(Duration::from_secs(seconds))),
            None => "never".into(),
        };
        table.add_row([
            server.name.to_string(),
            server.tools.map(|tools| tools.to_string()).unwrap_or_default(),
            server.state.map_or_else(listed, |needs| state(Some(needs))),
        ]);
    }
    for name in &last.disabled {
        table.add_row([name.as_str(), "", "disabled"]);
    }
    say!("{table}");
}

/// Prints the user's other gateways, such as those that clients have started for themselves.
fn print_others(status: &StatusReport) {
    let pid = status.gateway.as_ref().and_then(|running| Some(running.process.as_ref()?.pid));
    let others: Vec<&GatewayAbout> =
        status.gateways.iter().filter(|gateway| pid != Some(gateway.pid)).collect();
    if others.is_empty() {
        return;
    }
    let title = if status.running { "Your other gateways" } else { "Your gateways" };
    say!("\n{title} (`nonet ui` shows them all):");
    let mut table =
        show::plain_table(&["PROCESS", "SERVES", "VERSION", "UP FOR", "CLIENTS", "CONFIGURATION"]);
    for gateway in others {
        let version = match &*gateway.version {
            version if version == env!("CARGO_PKG_VERSION") => version.into(),
            version => paint(WordStyle::Warn, version),
        };
        table.add_row([
            gateway.pid.to_string(),
            gateway.serves.map_or("", ServeMode::as_str).to_owned(),
            version,
            show::age(Duration::from_secs(gateway.uptime_s)),
            gateway.clients.join(", "),
            gateway.config.display().to_string(),
        ]);
    }
    say!("{table}");
}

/// Prints the failure of a server in a status, if any.
pub(super) fn say_trouble(server: &ServerStatus, verbose: bool) {
    let name = &server.name;
    match (&server.login, &server.last_error) {
        (None, None) => {}
        (Some(login), _) => say!("{name}: requires sign-in: run `{login}`"),
        // A configuration fault already names its remedy.
        (None, Some(error)) if server.state == Some(ServerState::NeedsConfig) => say!("{name}: {error}"),
        (None, Some(error)) => say!("{name}: {}", show::failure(error, verbose)),
    }
}

fn print_running(running: &ProcessStatus) {
    let ProcessStatus { gateway: status, process } = running;
    let uptime = show::age(Duration::from_secs(status.uptime_s));
    let of_process = process.as_ref().map(|process| format!(", process {}", process.pid));
    say!(
        "Nonet {}, up for {uptime}{}: {}, {}",
        status.version,
        of_process.unwrap_or_default(),
        show::count(status.servers.len() as u64, "server"),
        show::count(status.tools as u64, "tool"),
    );
    let exports = status.audit.iter().flat_map(|audit| &audit.exports);
    for export in exports.filter(|export| export.error.is_some() || export.lost > 0) {
        let error = export.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        let waiting = show::count(export.waiting_bytes, "byte");
        say!(
            "audit export {}: {}{error}; {waiting} wait, {} lines lost",
            export.name,
            export.state,
            export.lost
        );
    }
    let clients = process.as_ref().map(|process| show::count(process.clients as u64, "client"));
    let counts = [
        show::count(status.calls, "call"),
        format!("{} of them failed", status.failures),
        format!("{} running", show::count(status.tasks_running as u64, "task")),
    ];
    say!("{}", clients.into_iter().chain(counts).collect::<Vec<_>>().join(", "));
    if !status.protocols.is_empty() {
        let of = |one: &ClientProtocol| match one.sessions {
            1 => format!("{} {}", text::name(&one.client), one.protocol),
            many => format!("{} {} ({many} sessions)", text::name(&one.client), one.protocol),
        };
        say!("clients speak: {}", status.protocols.iter().map(of).collect::<Vec<_>>().join(", "));
    }
    status.cluster.iter().for_each(print_cluster);
    say!("");
    if let Some(lost) = &status.config_refused {
        let lost = lost.join("; ");
        say!(
            "{}: it loses {lost}. Run `nonet reload --accept` to accept it.\n",
            paint(WordStyle::Bad, "servers.toml is refused")
        );
    }
    for task in process.iter().flat_map(|process| &process.tasks) {
        let age = show::age(Duration::from_millis(task.elapsed_ms));
        say!("{} {} for {age}", task.task_id, task.tool);
    }
}

fn print_cluster(cluster: &SharedStore) {
    let SharedStore { name, at, .. } = cluster;
    say!("replica {name} of the cluster in Redis at {at}");
    for other in cluster.replicas.iter().flatten().filter(|other| other.name != *name) {
        let mut line = format!("  beside {} at {}", other.name, other.address);
        if other.version != env!("CARGO_PKG_VERSION") {
            line.push_str(&format!(", Nonet {}", other.version));
        }
        if other.leaving {
            line.push_str(", stopping");
        }
        if other.other_config {
            line.push_str(&format!(", {}", paint(WordStyle::Bad, "with a different configuration")));
        }
        say!("{line}");
    }
    if let Some(trouble) = &cluster.trouble {
        say!("{}", paint(WordStyle::Bad, &format!("Redis {trouble}")));
    }
}

/// Returns a server's state in its colour.
pub(super) fn state(state: Option<ServerState>) -> String {
    let Some(state) = state else { return String::new() };
    let style = match state {
        ServerState::Ready => WordStyle::Good,
        ServerState::Down | ServerState::AuthRequired | ServerState::NeedsConfig => WordStyle::Bad,
        ServerState::Starting | ServerState::Stopped | ServerState::Held => WordStyle::Warn,
    };
    paint(style, state.as_str())
}
