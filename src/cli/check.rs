//! `nonet check`: the configuration, then each server.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FAILED, OK, UNUSABLE, gateway, launchers, show, signal::stopped, status};
use crate::{
    catalog::{GATEWAY, Tool},
    config::{ConfigFault, Loaded, Unusable},
    downstream::State,
    gateway::Gateway,
    meta,
    results::json_len,
};

/// A configuration that cannot be used, as JSON.
pub fn unusable(unusable: &Unusable) -> Value {
    let faults: Vec<Value> = unusable.faults().iter().map(fault).collect();
    let mut out = json!({ "usable": false, "faults": faults });
    if faults.is_empty() {
        out["error"] = json!(unusable.to_string());
    }
    out
}

fn fault(fault: &ConfigFault) -> Value {
    json!({
        "file": fault.file,
        "line": fault.line,
        "column": fault.column,
        "key": fault.key,
        "message": fault.message,
        "remedy": fault.remedy,
        "left_out": fault.entry,
    })
}

/// Prints what is wrong and how every server does. Exit code 0: all fine; 1: a server failed; 2: the
/// configuration has faults.
pub async fn run(loaded: Loaded, as_json: bool, verbose: bool) -> anyhow::Result<u8> {
    let (faults, exposed) = (loaded.faults.clone(), loaded.warnings.clone());
    let file = loaded.config.file.clone();
    let limit = loaded.config.servers.values().map(|server| server.start_timeout).max().unwrap_or_default();
    let disabled: Vec<String> = loaded
        .config
        .servers
        .iter()
        .filter(|(_, server)| !server.enabled)
        .map(|(name, _)| name.to_string())
        .collect();
    let gateway = gateway(loaded, true);
    gateway.connect();
    let launchers = launchers::versions(&gateway.config()).await;
    let servers: Vec<Arc<str>> = gateway.connections().keys().cloned().collect();
    tokio::select! {
        () = show::starting(&gateway, &servers, limit) => {}
        code = stopped() => {
            gateway.stop().await;
            return Ok(code);
        }
    }
    gateway.published().await;
    let snapshot = gateway.snapshot();
    let backend = match gateway.embedder() {
        Some(embedder) => embedder
            .ready()
            .await
            .map(|backend| format!("{} ({})", backend.name, backend.detail))
            .map_err(|e| e.to_string()),
        None => Err("not started".into()),
    };
    let mut status = gateway.status(&crate::gateway::session::Caller::default());
    let failed = gateway.connections().values().any(|c| !matches!(c.state(), State::Ready { .. }));
    let (whole, nine) = meta::saving(&gateway);
    let warnings = warnings(&gateway);
    let unmatched = gateway.unmatched();
    gateway.stop().await;
    let failed = failed || !exposed.is_empty();
    let code = match (faults.is_empty(), failed || warnings.iter().any(|warning| warning.serious)) {
        (false, _) => UNUSABLE,
        (true, true) => FAILED,
        (true, false) => OK,
    };
    if as_json {
        status["usable"] = json!(true);
        status["file"] = json!(file);
        status["faults"] = json!(faults.iter().map(fault).collect::<Vec<_>>());
        status["disabled"] = json!(disabled);
        let warnings =
            warnings.iter().map(|warning| json!({ "server": warning.server, "message": warning.message }));
        let rules = unmatched.iter().map(|rule| json!({ "key": rule.key, "message": rule.message }));
        let warnings = warnings.chain(exposed.iter().map(fault)).chain(rules);
        status["warnings"] = json!(warnings.collect::<Vec<_>>());
        status["embedder"] = match &backend {
            Ok(backend) => json!({ "backend": backend }),
            Err(error) => json!({ "error": error }),
        };
        status["launchers"] = json!(launchers);
        status["definitions"] = json!({ "bytes_of_all_tools": whole, "bytes_of_the_nine": nine });
        say!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(code);
    }
    say!(
        "{}: {}",
        file.display(),
        if faults.is_empty() { "no faults".into() } else { show::count(faults.len() as u64, "fault") }
    );
    for fault in &faults {
        let left_out =
            fault.entry.as_ref().map(|entry| format!(" [{entry}] is left out.")).unwrap_or_default();
        say!("  {fault}{left_out}");
    }
    let mut table = show::plain_table(&["SERVER", "STATE", "STARTED", "PROTOCOL", "TOOLS"]);
    for server in status["servers"].as_array().into_iter().flatten() {
        let text = |key: &str| server[key].as_str().unwrap_or_default().to_string();
        let started = server["started_ms"].as_u64().map(|ms| format!("{ms} ms")).unwrap_or_default();
        table.add_row([
            text("name"),
            status::state(&text("state")),
            started,
            text("version"),
            server["tools"].to_string(),
        ]);
    }
    for name in disabled {
        table.add_row([name, "disabled".into(), String::new(), String::new(), String::new()]);
    }
    say!("{table}");
    let servers = status["servers"].as_array().into_iter().flatten();
    // Why a server is left out stands above.
    for server in servers.filter(|server| server["state"] != "needs_config") {
        status::say_trouble(server, verbose);
    }
    for warning in &warnings {
        say!("{}: {}", warning.server, warning.message);
    }
    for rule in &unmatched {
        say!("warning: {rule}");
    }
    for fault in &exposed {
        say!("{fault}");
    }
    if !launchers.is_empty() {
        let told = launchers.iter().map(|(program, version)| match version {
            Some(version) => format!("{program} {version}"),
            None => format!("{program} (does not run)"),
        });
        say!("started by: {}", told.collect::<Vec<_>>().join(", "));
    }
    match backend {
        Ok(backend) => say!("search by meaning: {backend}"),
        Err(error) => say!("{error}"),
    }
    say!(
        "definitions: {whole} bytes for {} (about {} tokens); clients read {nine} bytes (about {} tokens)",
        show::count(snapshot.of_servers().count() as u64, "tool"),
        whole / 4,
        nine / 4
    );
    Ok(code)
}

/// Something about a server's tools that its user may want to know.
struct Warning {
    server: String,
    message: String,
    /// Whether it is more than a remark.
    serious: bool,
}

/// A definition from this size on, in bytes, is worth a word: it costs about 2,500 tokens wherever it is listed.
const LARGE_DEFINITION: usize = 10_000;
/// How many tools a warning names.
const NAMED: usize = 3;

/// What is worth saying of the tools of every server.
fn warnings(gateway: &Gateway) -> Vec<Warning> {
    let snapshot = gateway.snapshot();
    let mut all = Vec::new();
    for (server, entry) in snapshot.catalog.servers().iter().filter(|(name, _)| ***name != *GATEWAY) {
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
            "have no description, so that search knows their names alone",
            which(&|tool| tool.description.is_empty()),
        );
        let plain = |tool: &Tool| *tool.wire == tool.full.replacen('.', "__", 1);
        warn(false, "are called by a shortened or changed name in APIs", which(&|tool| !plain(tool)));
        warn(
            true,
            "have a schema that cannot be used, so that their params go unchecked",
            which(&|tool| tool.schema.broken().is_some()),
        );
        let large = |tool: &Tool| json_len(&tool.definition) > LARGE_DEFINITION;
        warn(false, "have a definition of more than 10,000 bytes", which(&large));
    }
    all
}
