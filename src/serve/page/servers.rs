//! The page's view of servers: what a person does to them, kept in servers.toml or until the gateway
//! restarts.

// An answer that refuses is made once for each request of a person; nothing is gained by boxing it.
#![allow(clippy::result_large_err)]

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, State},
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use http::StatusCode;
use nonet_api::{
    page::{ErrorAnswer, ErrorReason},
    servers::{
        AddReport, AddRequest, AddedServer, EditReport, EditRequest, ImportRequest, SecretReport,
        SecretRequest, ServerHistory, ServerText, SignInAddress, TokenRequest,
    },
};
use nonet_config::{ValueSources, keyring, shell};
use nonet_core::Gateway;
use nonet_hosts::{
    self as hosts, EditError, HostFault, ImportPlan, ImportSource, Machine, SecretStore, TypedLabels,
    TypedServer,
};
use nonet_state::trying::ServerTrial;
use nonet_store::reloads::text_hash;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{answer, done, unreadable};

/// The longest body, in bytes.
pub(super) const MAX_BODY: usize = 512 << 10;
/// How many servers are added at once.
const MOST_ADDED: usize = 50;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/ui/api/servers", post(add))
        .route("/ui/api/servers/import", post(import))
        .route("/ui/api/servers/{name}/text", get(text).post(edit))
        .route("/ui/api/servers/{name}/history", get(history))
        .route("/ui/api/servers/{name}/secret", post(secret))
        .route("/ui/api/servers/{name}/token", post(token))
        .route("/ui/api/servers/{name}/{action}", post(act))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

/// An answer with what is wrong.
pub(super) fn wrong(status: StatusCode, message: impl std::fmt::Display) -> Response {
    answer(status, &ErrorAnswer::new(message))
}

pub(super) fn unfit(message: impl std::fmt::Display) -> Response {
    wrong(StatusCode::BAD_REQUEST, message)
}

/// The body of a request.
pub(super) fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Response> {
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

/// Does work that blocks.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HostFault> + Send + 'static,
) -> Result<T, Response> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(unfit),
        Err(_) => Err(wrong(StatusCode::INTERNAL_SERVER_ERROR, "This could not be done.")),
    }
}

/// The servers.toml, if it can be edited.
pub(super) fn editable(gateway: &Gateway) -> Result<PathBuf, Response> {
    match gateway.uneditable() {
        Some(why) => Err(wrong(StatusCode::CONFLICT, why)),
        None => Ok(gateway.servers.config().file.clone()),
    }
}

async fn add(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Result<Response, Response> {
    let wanted: AddRequest = read(&body)?;
    let file = editable(&gateway)?;
    let command = shell::words(&wanted.command).map_err(|why| unfit(format!("The command line: {why}.")))?;
    let ways = [!command.is_empty(), !wanted.url.is_empty(), !wanted.openapi.is_empty()];
    if ways.iter().filter(|way| **way).count() != 1 {
        return Err(unfit(
            "A server needs exactly one of a command line, an address and an OpenAPI document.",
        ));
    }
    if !wanted.url.is_empty() && !wanted.url.contains("://") && !wanted.url.starts_with("${") {
        return Err(unfit(
            "The address must begin with `http://` or `https://`. Put a program into the command line.",
        ));
    }
    let given = |text: &'_ str| (!text.is_empty()).then(|| text.to_string());
    let [url, openapi, base_url, description] =
        [&wanted.url, &wanted.openapi, &wanted.base_url, &wanted.description].map(|text| given(text.trim()));
    let typed = TypedServer {
        description: description.as_deref(),
        url: url.as_deref(),
        transport: None,
        openapi: openapi.as_deref(),
        base_url: base_url.as_deref(),
        command: &command,
        env: &wanted.env,
        headers: &wanted.headers,
        tags: &wanted.tags,
    };
    let mut notes = Vec::new();
    let folder = file.parent().map(PathBuf::from).unwrap_or_default();
    let labels = TypedLabels { env: "Variables", headers: "Headers" };
    let entry = typed.entry(&folder, labels, &mut notes).map_err(|why| unfit(format!("{why}.")))?;
    let name = wanted.name.trim().to_string();
    let imported = blocking(move || {
        let machine = Machine::this()?;
        let work =
            |options: hosts::ImportOptions<'_>| hosts::add_server(&file, &name, &entry, options, &machine);
        Ok(hosts::keeping_secrets(keyring::UNATTENDED, false, work, ImportPlan::stores_secrets)?.0)
    });
    added(&gateway, imported.await?, wanted.check, notes).await
}

async fn import(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Result<Response, Response> {
    let ImportRequest { text, without, check } = read(&body)?;
    let file = editable(&gateway)?;
    let imported = blocking(move || {
        let machine = Machine::this()?;
        let source = ImportSource::Text(&text, &without);
        let work = |options: hosts::ImportOptions<'_>| hosts::import(source, &file, options, &machine);
        Ok(hosts::keeping_secrets(keyring::UNATTENDED, false, work, ImportPlan::has_secrets)?.0)
    });
    let imported = imported.await?;
    if imported.rows.is_empty() {
        return Err(unfit(
            "The text contains no server. It should look like {\"mcpServers\": {\"NAME\": {...}}}.",
        ));
    }
    if imported.rows.len() > MOST_ADDED {
        return Err(unfit(format!("Add at most {MOST_ADDED} servers at once.")));
    }
    added(&gateway, imported, check, Vec::new()).await
}

/// Writes new servers into the file once they have started; tells how each did.
pub(super) async fn added(
    gateway: &Arc<Gateway>,
    imported: ImportPlan,
    check: bool,
    mut notes: Vec<String>,
) -> Result<Response, Response> {
    let imported = Arc::new(imported);
    let new = |row: &&hosts::ImportRow| row.done.is_new();
    let names: Vec<String> =
        imported.rows.iter().filter(new).filter_map(|row| row.done.server().map(Into::into)).collect();
    let mut tried = Vec::new();
    if check && !names.is_empty() {
        let preview = imported.clone();
        let loaded = blocking(move || Ok(ValueSources::of_this_machine(|sources| preview.preview(sources))));
        let loaded = loaded.await?.map_err(unfit)?;
        tried = gateway.servers.try_servers(&loaded.config, &names).await;
    }
    let failed = tried.iter().any(ServerTrial::has_failed);
    let servers = imported
        .rows
        .iter()
        .map(|row| {
            let server = row.done.server();
            let rules = row.rules.iter().map(|rule| format!("`{}` became {}", rule.rule, rule.became));
            let notes: Vec<String> = row.notes.iter().cloned().chain(rules).collect();
            let trial = tried.iter().find(|trial| Some(trial.name.as_str()) == server);
            AddedServer {
                name: row.name.clone(),
                server: server.map(String::from),
                done: row.done.to_string(),
                new: row.done.is_new(),
                notes,
                tried: trial.map(ServerTrial::view),
                failed: trial.map(ServerTrial::has_failed),
            }
        })
        .collect();
    notes.extend(imported.notes.iter().cloned());
    let file = imported.change.file.clone();
    for variable in imported.variables.iter().filter(|variable| !variable.set) {
        let set = shell::nonet(&format!("secret set {} --file", variable.name), &file);
        notes.push(format!("`{}` is not set: run `{set}`", variable.name));
    }
    let secrets = told_secrets(&imported);
    let written = !failed && !names.is_empty();
    let mut told = AddReport { written, servers, notes, secrets, trouble: None };
    if written {
        let apply = imported.clone();
        blocking(move || apply.apply()).await?;
        tell(gateway, "add", &names.join(", "));
        told.trouble = gateway.taken_up(&imported.change).await.err();
    }
    Ok(answer(StatusCode::OK, &told))
}

/// Says where secrets are stored.
pub(super) fn told_secrets(imported: &ImportPlan) -> Vec<String> {
    let place = |kept: &hosts::KeptSecret| match kept.store {
        SecretStore::Keyring => format!("`{}` goes into the keyring", kept.name),
        SecretStore::File => format!("`{}` goes into {}", kept.name, imported.secrets_file().display()),
    };
    imported.secrets.iter().map(place).collect()
}

fn tell(gateway: &Gateway, action: &str, server: &str) {
    tracing::info!(server, action, "requested on the live page");
    super::audit(gateway, || json!({ "server": server, "action": action }));
}

/// Whether a server is known here: connected, switched off or left out.
fn is_known(gateway: &Gateway, name: &str) -> bool {
    let config = gateway.servers.config();
    config.servers.keys().any(|server| server.as_str() == name) || config.left_out.contains_key(name)
}

fn unknown(name: &str) -> Response {
    wrong(StatusCode::NOT_FOUND, format!("there is no server `{name}`"))
}

/// What happened to a server lately: its states and its stderr.
async fn history(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
) -> Result<Response, Response> {
    let connections = gateway.servers.connections();
    let connection = connections.get(name.as_str()).ok_or_else(|| unknown(&name))?;
    Ok(answer(StatusCode::OK, &ServerHistory { entries: connection.history() }))
}

/// The text of one server in the file, with the hash of the whole.
async fn text(State(gateway): State<Arc<Gateway>>, Path(name): Path<String>) -> Result<Response, Response> {
    if !is_known(&gateway, &name) {
        return Err(unknown(&name));
    }
    let file = gateway.servers.config().file.clone();
    let shown = file.clone();
    let table = blocking(move || hosts::server_table(&file, &name)).await?;
    let hash = text_hash(&table.whole);
    let told = ServerText { text: table.text, line: table.line, hash, file: shown };
    Ok(answer(StatusCode::OK, &told))
}

async fn edit(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Response> {
    let EditRequest { text, hash } = read(&body)?;
    if !is_known(&gateway, &name) {
        return Err(unknown(&name));
    }
    let file = editable(&gateway)?;
    let server = name.clone();
    let edited = blocking(move || {
        let machine = Machine::this()?;
        let is_shown = |whole: &str| text_hash(whole) == hash;
        let work = |options: hosts::ImportOptions<'_>| {
            ValueSources::of_this_machine(|sources| {
                hosts::edit_table(&file, &server, &text, is_shown, options, sources, &machine)
            })
        };
        Ok(hosts::keeping_secrets(keyring::UNATTENDED, false, work, ImportPlan::stores_secrets))
    });
    let (edit, _) = edited.await?.map_err(|unedited| not_edited(&unedited))?;
    gateway.refuse_losses(&edit.loaded.config).map_err(|why| wrong(StatusCode::CONFLICT, why))?;
    write(&gateway, edit.imported, "edit", &name, Vec::new()).await
}

/// Stores a value that a left-out server needs, where its text looks for the value, and tries the server
/// again.
async fn secret(
    State(gateway): State<Arc<Gateway>>,
    Path(server): Path<String>,
    body: Bytes,
) -> Result<Response, Response> {
    let SecretRequest { name, value } = read(&body)?;
    let config = gateway.servers.config();
    let missing = config.left_out.get(&server).ok_or_else(|| {
        let message = format!("`{server}` misses no value; the page may show an old state.");
        if is_known(&gateway, &server) { wrong(StatusCode::CONFLICT, message) } else { unknown(&server) }
    })?;
    let in_keyring = *missing.missing().get(name.as_str()).ok_or_else(|| {
        wrong(
            StatusCode::CONFLICT,
            format!("`{server}` does not need the value of `{name}`, or already has it."),
        )
    })?;
    let value = value.trim().to_string();
    if value.is_empty() {
        return Err(unfit(format!("Enter a value for `{name}`.")));
    }
    let store = if in_keyring { SecretStore::Keyring } else { SecretStore::File };
    let (file, named) = (config.file.clone(), name.clone());
    let place = blocking(move || hosts::keep_secret(&file, &named, &value, store)).await?;
    tell(&gateway, "secret", &server);
    let trouble = gateway.retry_with_value(&server, &name).await.err();
    let secrets = vec![format!("`{name}` is in {place}")];
    Ok(answer(StatusCode::OK, &SecretReport { secrets, trouble }))
}

/// Gives a server a token, which goes where secrets go.
async fn token(
    State(gateway): State<Arc<Gateway>>,
    Path(server): Path<String>,
    body: Bytes,
) -> Result<Response, Response> {
    let TokenRequest { token } = read(&body)?;
    if !is_known(&gateway, &server) {
        return Err(unknown(&server));
    }
    let file = editable(&gateway)?;
    let name = server.clone();
    let edited = blocking(move || {
        let machine = Machine::this()?;
        let work = |options: hosts::ImportOptions<'_>| {
            ValueSources::of_this_machine(|sources| {
                hosts::give_token(&file, &name, token.trim(), options, sources, &machine)
            })
        };
        Ok(hosts::keeping_secrets(keyring::UNATTENDED, false, work, ImportPlan::stores_secrets))
    });
    let (edit, _) = edited.await?.map_err(|unedited| not_edited(&unedited))?;
    gateway.accept_edit(&edit.imported.change).await;
    write(&gateway, edit.imported, "token", &server, Vec::new()).await
}

/// Says why a text was not taken.
pub(super) fn not_edited(unedited: &EditError) -> Response {
    match unedited {
        EditError::Stale(fault) => wrong(StatusCode::CONFLICT, fault),
        EditError::Faults(faults) => {
            let message = faults.first().map_or_else(String::new, |fault| fault.message.clone());
            let faults = faults.iter().take(20).cloned().collect();
            let told = ErrorAnswer { error: ErrorReason { message, faults, sign_in: None }, config: None };
            answer(StatusCode::UNPROCESSABLE_ENTITY, &told)
        }
    }
}

/// Applies an edit of the file, and waits until the gateway has taken it up.
pub(super) async fn write(
    gateway: &Arc<Gateway>,
    edit: impl Into<ImportPlan>,
    action: &str,
    server: &str,
    mut notes: Vec<String>,
) -> Result<Response, Response> {
    let edit: Arc<ImportPlan> = Arc::new(edit.into());
    let apply = edit.clone();
    let applied = blocking(move || apply.apply()).await?;
    notes.extend(edit.notes.iter().cloned());
    let mut told = EditReport {
        told: edit.change.told.clone(),
        notes,
        secrets: told_secrets(&edit),
        backup: applied.backup,
        written: applied.file.is_some(),
        trouble: None,
    };
    if told.written {
        tell(gateway, action, server);
        told.trouble = gateway.taken_up(&edit.change).await.err();
    }
    Ok(answer(StatusCode::OK, &told))
}

/// Does something to a server: to its connection until the gateway restarts, or in the file.
async fn act(
    State(gateway): State<Arc<Gateway>>,
    Path((name, action)): Path<(String, String)>,
) -> Result<Response, Response> {
    match action.as_str() {
        "restart" | "hold" | "release" => {
            let connections = gateway.servers.connections();
            let connection = connections.get(name.as_str()).ok_or_else(|| unknown(&name))?;
            match action.as_str() {
                "restart" => connection.restart(),
                "hold" => connection.hold(),
                _ => connection.release(),
            }
            tell(&gateway, &action, &name);
            Ok(done())
        }
        "login" => match gateway.servers.begin_sign_in(&name).await {
            Ok(address) => {
                tell(&gateway, &action, &name);
                Ok(answer(StatusCode::OK, &SignInAddress { address }))
            }
            Err(why) => Err(wrong(StatusCode::CONFLICT, why)),
        },
        "enable" | "disable" => {
            if !is_known(&gateway, &name) {
                return Err(unknown(&name));
            }
            let (file, server, enabled) = (editable(&gateway)?, name.clone(), action == "enable");
            let change =
                blocking(move || hosts::enable_server(&file, &server, enabled, &Machine::this()?)).await?;
            if !enabled {
                gateway.accept_edit(&change).await;
            }
            if let Some(connection) = gateway.servers.connections().get(name.as_str()).filter(|_| enabled) {
                connection.release();
            }
            write(&gateway, change, &action, &name, Vec::new()).await
        }
        "remove" => {
            if !is_known(&gateway, &name) {
                return Err(unknown(&name));
            }
            let (file, server) = (editable(&gateway)?, name.clone());
            let place = file.clone();
            let removal = blocking(move || hosts::remove_server(&file, &server, &Machine::this()?)).await?;
            let mut notes = Vec::new();
            if !removal.named_in.is_empty() {
                notes.push(format!("Still named in {}; remove the name there.", removal.named_in.join(", ")));
            }
            for entry in &removal.left_out {
                notes.push(format!("[{entry}] is left out as long as it names `{name}`."));
            }
            for secret in &removal.unused {
                let option = if secret.store == SecretStore::File { " --file" } else { "" };
                let remove = shell::nonet(&format!("secret remove {}{option}", secret.name), &place);
                notes.push(format!("The secret `{}` is now unused: `{remove}` deletes it.", secret.name));
            }
            gateway.accept_edit(&removal.change).await;
            write(&gateway, removal.change, "remove", &name, notes).await
        }
        _ => Err(wrong(
            StatusCode::NOT_FOUND,
            format!(
                "unknown action `{action}`; use restart, hold, release, login, enable, disable or remove"
            ),
        )),
    }
}
