//! The page's view of clients on this machine: whether Nonet is in their files, and what puts it there or
//! takes it out.

// An answer that refuses is made once for each request of a person; nothing is gained by boxing it.
#![allow(clippy::result_large_err)]

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, State},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use http::StatusCode;
use nonet_api::setup::{AppliedChange, ApplyRequest, HostChange, HostList, HostRow};
use nonet_base::text::clip;
use nonet_core::{Gateway, place_of};
use nonet_hosts::{
    self as hosts, FileChange, FileScope, HOSTS, Host, HostFault, LaunchCommand, Machine, OwnEntry,
};
use serde_json::json;

use super::{
    answer,
    servers::{MAX_BODY, blocking, read, wrong},
};

/// The longest difference that is shown, in characters.
const MOST_SHOWN: usize = 60_000;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/ui/api/hosts", get(list))
        .route("/ui/api/hosts/{name}/{action}", get(show).post(apply))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

/// How clients start Nonet with the configuration of this gateway.
fn launch(gateway: &Gateway) -> Result<LaunchCommand, Response> {
    let file = gateway.servers.config().file.clone();
    let file = std::path::absolute(&file).unwrap_or(file);
    Machine::this()
        .map_err(std::io::Error::other)
        .and_then(|machine| LaunchCommand::of(&file, None, &machine))
        .map_err(|_| wrong(StatusCode::INTERNAL_SERVER_ERROR, "The path of this program is unknown."))
}

async fn list(State(gateway): State<Arc<Gateway>>) -> Result<Response, Response> {
    let launch = launch(&gateway)?;
    let own = place_of(&gateway.servers.config().file);
    let rows = blocking(move || {
        let machine = Machine::this()?;
        Ok(HOSTS.iter().map(|host| row(host, &launch, &own, &machine)).collect::<Vec<_>>())
    });
    Ok(answer(StatusCode::OK, &HostList { hosts: rows.await? }))
}

fn row(host: &'static Host, launch: &LaunchCommand, own: &str, machine: &Machine) -> HostRow {
    let mut row = HostRow {
        name: host.name.into(),
        title: host.title.into(),
        file: host.file(FileScope::User, machine),
        found: host.is_found(machine),
        reload: host.reload.into(),
        entry: hosts::entry_text(host, launch).unwrap_or_default(),
        nonet: None,
        config: None,
        fault: None,
    };
    match hosts::present(host, FileScope::User, machine) {
        Ok(OwnEntry::Absent) => row.nonet = Some("absent".into()),
        Ok(OwnEntry::Elsewhere) => row.nonet = Some("elsewhere".into()),
        Ok(OwnEntry::Program { config, .. }) => {
            // Without a file, the entry means the user's own.
            let file = config.as_deref().map(PathBuf::from).or_else(nonet_config::user_file);
            let is_own = file.is_some_and(|file| place_of(&file) == own);
            row.nonet = Some(if is_own { "here" } else { "other" }.into());
            row.config = config;
        }
        Err(fault) => row.fault = Some(fault.to_string()),
    }
    row
}

/// What would be done to a client's file.
fn change(name: &str, action: &str, launch: &LaunchCommand) -> Result<FileChange, HostFault> {
    let (host, machine) = (hosts::find(name)?, Machine::this()?);
    match action {
        "install" => hosts::install(host, FileScope::User, launch, &[], &machine),
        _ => hosts::uninstall(host, FileScope::User, &machine),
    }
}

fn known_action(action: &str) -> Result<(), Response> {
    match action {
        "install" | "uninstall" => Ok(()),
        _ => {
            Err(wrong(StatusCode::NOT_FOUND, format!("unknown action `{action}`; use install or uninstall")))
        }
    }
}

async fn show(
    State(gateway): State<Arc<Gateway>>,
    Path((name, action)): Path<(String, String)>,
) -> Result<Response, Response> {
    known_action(&action)?;
    let launch = launch(&gateway)?;
    let change = blocking(move || change(&name, &action, &launch)).await?;
    let told = HostChange {
        nothing: change.is_nothing(),
        diff: clip(&change.diff(), MOST_SHOWN),
        digest: change.digest(),
        file: change.file,
        told: change.told,
    };
    Ok(answer(StatusCode::OK, &told))
}

async fn apply(
    State(gateway): State<Arc<Gateway>>,
    Path((name, action)): Path<(String, String)>,
    body: Bytes,
) -> Result<Response, Response> {
    known_action(&action)?;
    let ApplyRequest { digest } = read(&body)?;
    let launch = launch(&gateway)?;
    let (client, done) = (name.clone(), action.clone());
    let applied = blocking(move || {
        let change = change(&name, &action, &launch)?;
        if change.digest() != digest {
            return Ok(None);
        }
        Ok(Some((change.apply()?, change.told)))
    });
    let Some((applied, told)) = applied.await? else {
        let message = "The client's file has changed since the difference was shown. Nothing was written; review it again.";
        return Err(wrong(StatusCode::CONFLICT, message));
    };
    tracing::info!(client, action = done, "requested on the live page");
    super::audit(&gateway, || json!({ "client": client, "action": done }));
    Ok(answer(StatusCode::OK, &AppliedChange { told, file: applied.file, backup: applied.backup }))
}
