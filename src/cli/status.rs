//! `nonet status`: shows the running gateway, else the last lists of the servers.

use std::{path::Path, time::Duration};

use nonet_base::json::set_member;
use nonet_core::{
    inquiry::{CLIENT, Inquiry},
    status::ServerStatus,
};
use nonet_text::fault::FaultCode;
use serde_json::{Value, json};

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
use crate::bridge::RunningGateway;

/// The interval between requests with `--follow`.
const EVERY: Duration = Duration::from_secs(1);
/// Members that change constantly; their changes are not reported.
const RESTLESS: [&str; 4] = ["uptime_s", "latency", "mean_us", "listed_s"];

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
            let gateways = elsewhere::gateways().await;
            if !gateways.is_empty() {
                set_member(&mut status, "gateways", gateways);
            }
        }
        let news = without_restless(&status);
        if before.as_ref() != Some(&news) {
            match (wanted.json, wanted.follow) {
                (true, true) => show::raw(&status.to_string()),
                (true, false) => show::whole(&status),
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
            return Ok(if status["running"] == true { OK } else { FAILED });
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Returns the status, or the exit code if there is none.
async fn ask_for_it(
    found: Option<&FoundFile>,
    profile: Option<String>,
    wanted: &StatusArgs,
) -> anyhow::Result<Result<Value, u8>> {
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
        Ok(Ok(mut status)) => {
            set_member(&mut status, "running", true);
            Ok(Ok(status))
        }
        Ok(Err(fault)) => Ok(Err({
            let manner = show::OutputStyle { json: wanted.json, verbose: way.verbose };
            show::answer(Err(fault), manner, show::whole)?
        })),
        Err(AskFailure::Unanswered(error)) if error.is_unknown_method() => {
            let message = "the running gateway is a different version of Nonet: run `nonet restart`";
            show::refuse(FaultCode::UpstreamError, message, wanted.json);
            Ok(Err(FAILED))
        }
        Err(other) => Ok(Err(ask::told(other, wanted.json)?)),
    }
}

/// Returns the last lists of a configuration's servers without starting any; none if the configuration is unusable.
fn last_known(found: &FoundFile, profile: Option<&str>, as_json: bool) -> anyhow::Result<Option<Value>> {
    let Some(loaded) = usable(found, profile, as_json)? else { return Ok(None) };
    let left_out = loaded.config.left_out.clone();
    let disabled = loaded.config.servers.iter().filter(|(_, server)| !server.enabled);
    let disabled: Vec<String> = disabled.map(|(name, _)| name.to_string()).collect();
    let gateway = super::gateway(loaded, false);
    let counts = gateway.last_counts();
    let servers = gateway.last_seen().into_iter().map(|(name, seen)| {
        let listed = seen.listed.zip(counts.get(&name));
        let (failed_s, last_error) = seen.failed.map(|(age, error)| (age.as_secs(), error)).unzip();
        ServerStatus {
            tools: listed.map(|(_, count)| *count),
            listed_s: listed.map(|(age, _)| age.as_secs()),
            last_error,
            failed_s,
            name,
            ..ServerStatus::default()
        }
    });
    let needing = left_out.iter().map(|(name, left_out)| ServerStatus::left_out(name, left_out));
    let servers: Vec<ServerStatus> = servers.chain(needing).collect();
    let file = std::path::absolute(&found.path).unwrap_or_else(|_| found.path.clone());
    Ok(Some(json!({ "running": false, "file": file, "servers": servers, "disabled": disabled })))
}

/// Returns a status without its constantly changing members.
fn without_restless(status: &Value) -> Value {
    let mut status = status.clone();
    let calm = |value: &mut Value| {
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|key, _| {
                !RESTLESS.contains(&key.as_str()) && key != "elapsed_ms" && key != "failed_s"
            });
        }
    };
    for list in ["servers", "tasks", "gateways"] {
        status.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(calm);
    }
    calm(&mut status);
    status
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn print(status: &Value, verbose: bool) {
    let servers = || status["servers"].as_array().into_iter().flatten();
    if status["running"] == true {
        print_running(status);
        let mut columns = vec!["SERVER", "STATE", "TOOLS", "PROTOCOL", "RESTARTS", "CALLS NOW"];
        let has_places = servers().any(|server| server.get("runs_at").is_some());
        columns.extend(has_places.then_some("RUNS AT"));
        let mut table = show::plain_table(&columns);
        for server in servers() {
            let some = |key: &str| match number(&server[key]) {
                0 => String::new(),
                number => number.to_string(),
            };
            let mut row = vec![
                text(server, "name").to_owned(),
                state(text(server, "state")),
                server["tools"].to_string(),
                text(server, "version").to_owned(),
                some("restarts"),
                some("calls_running"),
            ];
            row.extend(has_places.then(|| text(server, "runs_at").to_owned()));
            table.add_row(row);
        }
        say!("{table}");
    } else {
        say!("No shared gateway is running for {}.\n", text(status, "file"));
        reload::tell_refused(Path::new(text(status, "file")));
        let mut table = show::plain_table(&["SERVER", "TOOLS", "LISTED"]);
        for server in servers() {
            let listed = server["listed_s"].as_u64();
            let listed = listed.map(|seconds| format!("{} ago", show::age(Duration::from_secs(seconds))));
            let listed = match text(server, "state") {
                "" => listed.unwrap_or_else(|| "never".into()),
                needs => state(needs),
            };
            table.add_row([
                text(server, "name").to_owned(),
                server.get("tools").map(Value::to_string).unwrap_or_default(),
                listed,
            ]);
        }
        for name in status["disabled"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            table.add_row([name, "", "disabled"]);
        }
        say!("{table}");
    }
    servers().for_each(|server| say_trouble(server, verbose));
    print_others(status);
}

/// Prints the user's other gateways, such as those that clients have started for themselves.
fn print_others(status: &Value) {
    let gateways = status["gateways"].as_array().into_iter().flatten();
    let is_other = |gateway: &&Value| status["running"] != true || gateway["pid"] != status["pid"];
    let others: Vec<&Value> = gateways.filter(is_other).collect();
    if others.is_empty() {
        return;
    }
    let title = if status["running"] == true { "Your other gateways" } else { "Your gateways" };
    say!("\n{title} (`nonet ui` shows them all):");
    let mut table =
        show::plain_table(&["PROCESS", "SERVES", "VERSION", "UP FOR", "CLIENTS", "CONFIGURATION"]);
    for gateway in others {
        let clients = gateway["clients"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let version = match text(gateway, "version") {
            version if version == env!("CARGO_PKG_VERSION") => version.into(),
            version => paint(WordStyle::Warn, version),
        };
        table.add_row([
            gateway["pid"].to_string(),
            text(gateway, "serves").to_owned(),
            version,
            show::age(Duration::from_secs(number(&gateway["uptime_s"]))),
            clients.collect::<Vec<_>>().join(", "),
            text(gateway, "config").to_owned(),
        ]);
    }
    say!("{table}");
}

/// Prints the failure of a server in a status, if any.
pub(super) fn say_trouble(server: &Value, verbose: bool) {
    let name = text(server, "name");
    match (text(server, "login"), text(server, "last_error")) {
        ("", "") => {}
        // A configuration fault already names its remedy.
        ("", error) if server["state"] == "needs_config" => say!("{name}: {error}"),
        ("", error) => say!("{name}: {}", show::failure(error, verbose)),
        (login, _) => say!("{name}: requires sign-in: run `{login}`"),
    }
}

fn print_running(status: &Value) {
    let uptime = show::age(Duration::from_secs(number(&status["uptime_s"])));
    let servers = status["servers"].as_array().map_or(0, Vec::len);
    let process = status["pid"].as_u64().map(|pid| format!(", process {pid}")).unwrap_or_default();
    say!(
        "Nonet {}, up for {uptime}{process}: {}, {}",
        text(status, "version"),
        show::count(servers as u64, "server"),
        show::count(number(&status["tools"]), "tool"),
    );
    let mut counts = Vec::new();
    if let Some(clients) = status["clients"].as_u64() {
        counts.push(show::count(clients, "client"));
    }
    counts.push(show::count(number(&status["calls"]), "call"));
    counts.push(format!("{} of them failed", number(&status["failures"])));
    counts.push(format!("{} running", show::count(number(&status["tasks_running"]), "task")));
    say!("{}", counts.join(", "));
    if let cluster @ Value::Object(_) = &status["cluster"] {
        let (name, at) = (text(cluster, "name"), text(cluster, "at"));
        say!("replica {name} of the cluster in Redis at {at}");
        let others = cluster["replicas"].as_array().into_iter().flatten();
        for other in others.filter(|other| text(other, "name") != name) {
            let mut line = format!("  beside {} at {}", text(other, "name"), text(other, "address"));
            if text(other, "version") != env!("CARGO_PKG_VERSION") {
                line.push_str(&format!(", Nonet {}", text(other, "version")));
            }
            if other["leaving"] == true {
                line.push_str(", stopping");
            }
            if other["other_config"] == true {
                line.push_str(&format!(", {}", paint(WordStyle::Bad, "with a different configuration")));
            }
            say!("{line}");
        }
        match text(cluster, "trouble") {
            "" => {}
            trouble => say!("{}", paint(WordStyle::Bad, &format!("Redis {trouble}"))),
        }
    }
    say!("");
    let lost: Vec<&str> =
        status["config_refused"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !lost.is_empty() {
        let lost = lost.join("; ");
        say!(
            "{}: it loses {lost}. Run `nonet reload --accept` to accept it.\n",
            paint(WordStyle::Bad, "servers.toml is refused")
        );
    }
    for task in status["tasks"].as_array().into_iter().flatten() {
        let age = show::age(Duration::from_millis(number(&task["elapsed_ms"])));
        say!("{} {} for {age}", text(task, "task_id"), text(task, "tool"));
    }
}

/// Returns a server's state in its colour.
pub(super) fn state(state: &str) -> String {
    match state {
        "ready" => paint(WordStyle::Good, state),
        "down" | "auth_required" | "needs_config" => paint(WordStyle::Bad, state),
        "" => String::new(),
        other => paint(WordStyle::Warn, other),
    }
}
