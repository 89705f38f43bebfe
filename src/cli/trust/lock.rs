//! `nonet trust --lock`: locks the definitions in a file, and checks whether servers still list them.

use std::path::Path;

use nonet_config::{LoadedConfig, shell};
use nonet_servers::{
    downstream::ConnectionState,
    pins::{
        WaitingPin,
        lock_file::{LockFile, LockedServer},
        plain, shown_name,
    },
};
use nonet_store::{Pin, PinKind};
use serde_json::{Value, json};

use super::super::{FAILED, OK, gateway, show};

/// One difference from the lock file.
struct Difference {
    pin: Pin,
    what: &'static str,
    text: String,
}

/// Starts every server, then writes the lock file or, if `check`, compares with it.
pub(in super::super) async fn run(loaded: LoadedConfig, check: bool, as_json: bool) -> anyhow::Result<u8> {
    let file = loaded.config.file.clone();
    let disabled: Vec<String> = loaded
        .config
        .servers
        .iter()
        .filter(|(_, server)| !server.enabled)
        .map(|(name, _)| name.to_string())
        .collect();
    let left_out: Vec<String> = loaded.config.left_out.keys().cloned().collect();
    let gateway = gateway(loaded, false);
    let servers = match show::all_started(&gateway).await {
        Ok(servers) => servers,
        Err(code) => return Ok(code),
    };
    show::missing(&gateway, &servers, false);
    let is_ready = |name: &str| {
        gateway
            .servers
            .connections()
            .get(name)
            .is_some_and(|one| matches!(one.state(), ConnectionState::Ready { .. }))
    };
    let failed: Vec<String> =
        servers.iter().filter(|name| !is_ready(name)).map(ToString::to_string).chain(left_out).collect();
    let listed = gateway.publisher.pins.listed();
    let (waiting, _) = gateway.waiting_definitions(usize::MAX).await.unwrap_or_default();
    gateway.stop().await;
    let path = nonet_config::lock_file_beside(Path::new(&nonet_core::place_of(&file)));
    let before =
        LockFile::read(&path).map_err(|why| anyhow::anyhow!("`{}` cannot be read: {why}", path.display()));
    let mut now = LockFile { version: 1, ..LockFile::default() };
    for (server, entries) in listed.iter().filter(|(server, _)| is_listed(&failed, server)) {
        now.servers.insert(server.to_string(), entries.clone());
    }
    if check {
        let Some(before) = before? else {
            anyhow::bail!(
                "there is no `{}`; `{}` writes it",
                path.display(),
                shell::nonet("trust --lock", &file)
            );
        };
        let known: Vec<&String> = disabled.iter().chain(&failed).collect();
        let differences = compare(&before, &now, &known, &waiting);
        return Ok(report(&differences, &failed, as_json));
    }
    // An unreachable server keeps its locked definitions.
    let before = before.unwrap_or_else(|why| {
        show::complain(format_args!("{why}; it will be replaced"));
        None
    });
    for (server, entries) in before.into_iter().flat_map(|before| before.servers) {
        if disabled.contains(&server) || failed.contains(&server) {
            now.servers.entry(server).or_insert(entries);
        }
    }
    now.write(&path)?;
    let definitions: usize = now.servers.values().map(|server| server.entries().count()).sum();
    match as_json {
        true => raw!(
            "{}",
            json!({ "file": path, "servers": now.servers.len(), "definitions": definitions, "failed": failed })
        ),
        false => say!(
            "Wrote {} of {} to {}.",
            show::count(definitions as u64, "definition"),
            show::count(now.servers.len() as u64, "server"),
            path.display()
        ),
    }
    if !failed.is_empty() {
        show::complain(format_args!("not reached, so kept as locked before: {}", show::names(&failed)));
    }
    Ok(if failed.is_empty() { OK } else { FAILED })
}

fn is_listed(failed: &[String], server: &str) -> bool {
    failed.iter().all(|name| name != server)
}

/// Returns the differences between the lock file and the lists. Servers that were not reached are left out.
fn compare(
    before: &LockFile,
    now: &LockFile,
    not_asked: &[&String],
    waiting: &[WaitingPin],
) -> Vec<Difference> {
    let none = LockedServer::default();
    let mut differences = Vec::new();
    let servers: std::collections::BTreeSet<&String> =
        before.servers.keys().chain(now.servers.keys()).collect();
    for server in servers.into_iter().filter(|server| !not_asked.contains(server)) {
        let locked = before.servers.get(server).unwrap_or(&none);
        let listed = now.servers.get(server).unwrap_or(&none);
        let mut add = |kind: PinKind, name: &str, what: &'static str| {
            let text = waiting
                .iter()
                .find(|one| one.pin.server == *server && one.pin.kind == kind && one.pin.name == name);
            let text = text.filter(|one| one.pin.trusted.as_deref() == locked.hash(kind, name));
            differences.push(Difference {
                pin: Pin {
                    server: server.clone(),
                    kind,
                    name: name.into(),
                    trusted: None,
                    by_user: false,
                    waiting: None,
                    since_ms: 0,
                    told: false,
                },
                what,
                text: text.map(|one| one.difference.clone()).unwrap_or_default(),
            });
        };
        for (kind, name) in listed.entries() {
            match (locked.hash(kind, name), listed.hash(kind, name)) {
                (Some(old), Some(new)) if old != new => add(kind, name, "changed"),
                // A server without instructions needs no line.
                (None, Some(new))
                    if kind != PinKind::Instructions || new != nonet_servers::pins::hash(&json!("")) =>
                {
                    add(kind, name, "new");
                }
                _ => {}
            }
        }
        for (kind, name) in locked.entries() {
            if listed.hash(kind, name).is_none() {
                add(kind, name, "gone");
            }
        }
    }
    differences
}

/// Prints the differences. Returns the exit code.
fn report(differences: &[Difference], failed: &[String], as_json: bool) -> u8 {
    if as_json {
        let all: Vec<Value> = differences
            .iter()
            .map(|one| json!({ "name": shown_name(&one.pin), "what": one.what, "difference": one.text }))
            .collect();
        show::raw(&json!({ "differences": all, "failed": failed }).to_string());
    } else {
        for Difference { pin, what, text } in differences {
            say!("{}: {what}", plain(&shown_name(pin)));
            text.lines().for_each(|line| raw!("    {line}"));
        }
        if !failed.is_empty() {
            show::complain(format_args!("not compared: {}", show::names(failed)));
        } else if differences.is_empty() {
            say!("Every definition matches the lock file.");
        }
    }
    if differences.is_empty() && failed.is_empty() { OK } else { FAILED }
}
