//! The first run on the page: takes over the servers of this machine's clients, as `nonet setup` does, and
//! undoes it.

// An answer that refuses is made once for each request of a person; nothing is gained by boxing it.
#![allow(clippy::result_large_err)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    response::Response,
    routing::post,
};
use bytes::Bytes;
use http::StatusCode;
use nonet_api::setup::{
    ClientReport, SetupClientView, SetupPlan, SetupReport, SetupRequest, SetupServer, UndoReport,
};
use nonet_base::text::clip;
use nonet_config::{ValueSources, keyring, shell};
use nonet_core::Gateway;
use nonet_hosts::{
    self as hosts, Defaults, FileScope, Host, HostFault, ImportPlan, ImportRow, KnownServer, Machine,
    RemainingServer, Setup, SetupClient, SetupUndo,
};
use nonet_state::trying::TrialResult;
use serde_json::json;

use super::{
    answer,
    servers::{MAX_BODY, blocking, editable, read, told_secrets, wrong},
};

/// The longest difference of one file that is shown, in characters.
const MOST_SHOWN: usize = 60_000;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/ui/api/setup/plan", post(plan))
        .route("/ui/api/setup", post(apply))
        .route("/ui/api/setup/undo", post(undo))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

/// A setup with the user's choices.
struct SetupChoice {
    setup: Setup,
    imported: ImportPlan,
    keyring: Option<keyring::Keyring>,
    defaults: Defaults,
    /// A digest of the files as they are and will be.
    seen: String,
}

impl SetupChoice {
    /// Works out the setup. Reads files, and blocks.
    fn new(target: &std::path::Path, wanted: SetupRequest) -> Result<Self, HostFault> {
        let named = wanted.clients.iter().map(|name| hosts::find(name)).collect::<Result<_, _>>()?;
        let setup = Setup::find(named, target, None, Machine::this()?)?;
        let (mut imported, keyring) = setup.import(keyring::UNATTENDED, &wanted.left)?;
        let mut defaults = imported.missing_defaults()?;
        defaults.ask_by_risk &= !wanted.unasked;
        defaults.shared &= setup.is_shared(&setup.planned(&imported)?);
        imported.add_defaults(defaults)?;
        let mut seen = imported.change.digest();
        for client in &setup.clients {
            let change = setup.change(client, &[])?;
            seen.push_str(change.digest().split('-').next().unwrap_or_default());
        }
        // The differences are shown without them.
        let typed = wanted.values.into_iter().map(|(name, value)| (name, value.trim().to_string()));
        imported.add_values(typed.filter(|(_, value)| !value.is_empty()));
        Ok(Self { setup, imported, keyring, defaults, seen })
    }

    fn shown(&self) -> Result<SetupPlan, HostFault> {
        let Self { setup, imported, defaults, seen, .. } = self;
        let client = |client: &SetupClient| {
            let carried = setup.movable(client.host, imported);
            let change = setup.change(client, &carried)?;
            Ok(SetupClientView {
                name: client.host.name.into(),
                title: client.host.title.into(),
                file: client.file.display().to_string(),
                moves: carried.len(),
                is_nothing: change.is_nothing(),
                stay: imported.will_stay(client.host, FileScope::User, &setup.machine),
                diff: clip(&change.diff(), MOST_SHOWN),
            })
        };
        let unset = imported.variables.iter().filter(|variable| !variable.set);
        Ok(SetupPlan {
            file: setup.target.display().to_string(),
            clients: setup.clients.iter().map(client).collect::<Result<_, HostFault>>()?,
            skipped: setup.skipped.iter().map(|one| (one.host.title.into(), one.why.to_string())).collect(),
            servers: imported.rows.iter().map(of_row).collect(),
            values: unset.map(|one| (one.name.clone(), one.what.clone(), one.servers.clone())).collect(),
            secrets: told_secrets(imported),
            notes: imported.notes.clone(),
            asks_by_risk: defaults.ask_by_risk,
            shares: defaults.shared,
            diff: clip(&imported.change.diff(), MOST_SHOWN),
            seen: seen.clone(),
        })
    }
}

fn of_row(row: &ImportRow) -> SetupServer {
    SetupServer {
        client: row.from.host.map(String::from),
        name: row.name.clone(),
        server: row.done.server().map(String::from),
        done: row.done.to_string(),
        notes: row.notes.clone(),
        rules: row.rules.clone(),
    }
}

async fn plan(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Result<Response, Response> {
    let wanted: SetupRequest = read(&body)?;
    let target = editable(&gateway)?;
    let shown = blocking(move || SetupChoice::new(&target, wanted)?.shown()).await?;
    Ok(answer(StatusCode::OK, &shown))
}

/// Starts every server, writes servers.toml, and puts Nonet in the place of the servers that work.
async fn apply(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Result<Response, Response> {
    let wanted: SetupRequest = read(&body)?;
    let (target, seen, left) = (editable(&gateway)?, wanted.seen.clone(), wanted.left.clone());
    let chosen = Arc::new(blocking(move || SetupChoice::new(&target, wanted)).await?);
    if chosen.seen != seen {
        let message =
            "A file has changed since the differences were shown. Nothing was written; review them again.";
        return Err(wrong(StatusCode::CONFLICT, message));
    }
    let broken = broken(&gateway, &chosen).await?;
    // What is begun is done, even if the page is closed meanwhile.
    let done = tokio::spawn(super::as_visitor(take_over(gateway, chosen, left, broken))).await;
    let failed =
        |_| wrong(StatusCode::INTERNAL_SERVER_ERROR, "The setup was not completed; it can be undone.");
    Ok(answer(StatusCode::OK, &done.map_err(failed)??))
}

/// Writes servers.toml and the clients' files. The undo is stored as soon as something is written.
async fn take_over(
    gateway: Arc<Gateway>,
    chosen: Arc<SetupChoice>,
    left: Vec<RemainingServer>,
    broken: BTreeMap<String, String>,
) -> Result<SetupReport, Response> {
    let work = chosen.clone();
    let applied = blocking(move || work.imported.apply()).await?;
    let remember = |installed: &[&'static Host]| {
        let undo = chosen.setup.undo(&chosen.imported, &applied, installed);
        *gateway.setup_undo.lock() = Some(undo.clone());
        undo
    };
    remember(&[]);
    let trouble = gateway.taken_up(&chosen.imported.change).await.err();
    let clients = match trouble {
        // Without the gateway, a client would lose its servers.
        Some(_) => Vec::new(),
        None => {
            let (work, reasons) = (chosen.clone(), broken.clone());
            let clients = blocking(move || {
                let SetupChoice { setup, keyring, .. } = &*work;
                let now = setup.import_again(keyring.as_ref(), &left)?;
                let move_in = |client: &SetupClient| move_client(setup, client, &now, &reasons);
                Ok(setup.clients.iter().map(move_in).collect::<Vec<_>>())
            });
            clients.await?
        }
    };
    let (clients, installed): (Vec<ClientReport>, Vec<Option<&'static Host>>) = clients.into_iter().unzip();
    let installed: Vec<&'static Host> = installed.into_iter().flatten().collect();
    let undo = remember(&installed);
    let names: Vec<&str> = installed.iter().map(|host| host.name).collect();
    tracing::info!(clients = ?names, "a setup was made on the live page");
    super::audit(&gateway, || json!({ "action": "setup", "clients": names }));
    let target = &chosen.setup.target;
    Ok(SetupReport {
        file: target.display().to_string(),
        secrets: told_secrets(&chosen.imported),
        broken,
        clients,
        trouble: trouble.map(|why| format!("{why} No client was changed.")),
        undo: undo.commands(|command| shell::nonet(command, target)),
    })
}

/// Starts the servers that will be in servers.toml and do not run yet. Returns those that do not work, each
/// with the reason.
async fn broken(
    gateway: &Arc<Gateway>,
    chosen: &Arc<SetupChoice>,
) -> Result<BTreeMap<String, String>, Response> {
    let work = chosen.clone();
    let loaded =
        blocking(move || Ok(ValueSources::of_this_machine(|sources| work.imported.preview(sources))));
    let loaded = loaded.await?.map_err(super::servers::unfit)?;
    let servers = chosen.imported.rows.iter().filter_map(|row| row.done.server());
    let (running, new): (BTreeSet<&str>, BTreeSet<&str>) =
        servers.partition(|server| gateway.servers.connections().contains_key(*server));
    let connections = gateway.servers.connections();
    let running = running.into_iter().filter_map(|name| {
        let connection = connections.get(name)?;
        Some((name.to_string(), TrialResult::of(connection.state(), || 0)))
    });
    let new: Vec<String> = new.into_iter().map(String::from).collect();
    let tried = gateway.servers.try_servers(&loaded.config, &new).await;
    let tried = tried.into_iter().filter_map(|trial| Some((trial.name, trial.tried?))).chain(running);
    Ok(tried.filter_map(|(name, tried)| Some((name, tried.trouble()?))).collect())
}

/// Puts Nonet into a client's file, in the place of the servers that work.
fn move_client(
    setup: &Setup,
    client: &SetupClient,
    now: &ImportPlan,
    broken: &BTreeMap<String, String>,
) -> (ClientReport, Option<&'static Host>) {
    let (carried, stays) = setup.carried(client, now, broken);
    let mut stay = now.staying(client.host, FileScope::User, &setup.machine);
    let why = |server: &str| broken.get(server).cloned().unwrap_or_default();
    stay.extend(stays.into_iter().map(|KnownServer { name, server }| (name, why(&server))));
    let done = setup.change(client, &carried).and_then(|change| {
        change.apply()?;
        Ok((!change.is_nothing(), change.told))
    });
    let title = client.host.title.into();
    match done {
        Ok((is_new, told)) => {
            (ClientReport { title, told, stay, fault: None }, is_new.then_some(client.host))
        }
        Err(fault) => (ClientReport { title, told: Vec::new(), stay, fault: Some(fault.to_string()) }, None),
    }
}

/// Undoes the last setup of the page: the clients' files, servers.toml and the secrets.
async fn undo(State(gateway): State<Arc<Gateway>>) -> Result<Response, Response> {
    let undo = gateway.setup_undo.lock().clone();
    let nothing = || wrong(StatusCode::CONFLICT, "There is no setup to undo: this gateway has made none.");
    let undo: Arc<SetupUndo> = Arc::new(undo.ok_or_else(nothing)?);
    let work = undo.clone();
    let changes = Arc::new(blocking(move || work.changes(&Machine::this()?)).await?);
    if let Some(config) = &changes.config {
        // The user means it, even where a protection goes with it.
        gateway.accept_edit(config).await;
    }
    let work = changes.clone();
    let told = blocking(move || {
        for change in work.clients.iter().chain(&work.config) {
            change.apply()?;
        }
        Ok(work.clients.iter().flat_map(|change| change.told.clone()).collect::<Vec<String>>())
    });
    let told = told.await?;
    let late = match &changes.config {
        Some(config) => gateway.taken_up(config).await.err(),
        None => None,
    };
    let kept = blocking(move || Ok(undo.remove_secrets().err())).await?;
    if kept.is_none() {
        *gateway.setup_undo.lock() = None;
    }
    let kept = kept.map(|fault| format!("Its secrets are still stored: {fault} Then undo again."));
    let trouble: Vec<String> = [late, kept].into_iter().flatten().collect();
    super::audit(&gateway, || json!({ "action": "undo_setup" }));
    Ok(answer(StatusCode::OK, &UndoReport { told, trouble }))
}
