//! Servers of the registry on the page: found as one types, and added with their values.

// As for other servers.
#![allow(clippy::result_large_err)]

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Query, State},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use http::StatusCode;
use nonet_api::servers::{RegistryList, RegistryOffer, RegistryRequest, RegistryValue};
use nonet_config::keyring;
use nonet_core::Gateway;
use nonet_hosts::{self as hosts, ImportPlan, Machine};
use nonet_registry::{AskedValue, FoundServer, Given, Registry, ServerEntry, ServerReference, ServerStatus};
use serde::Deserialize;

use super::{
    answer,
    servers::{MAX_BODY, added, blocking, editable, read, unfit, wrong},
};

/// How many servers a search shows.
const FOUND: usize = 20;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/ui/api/registry", get(find))
        .route("/ui/api/registry/server", get(look).post(add))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

#[derive(Deserialize)]
struct FindQuery {
    #[serde(default)]
    q: String,
}

async fn find(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<FindQuery>,
) -> Result<Response, Response> {
    let found = gateway.servers.find_in_registry(query.q.trim(), FOUND).await;
    let servers = found.map_err(|why| wrong(StatusCode::BAD_GATEWAY, format!("{why}.")))?;
    let registry = nonet_wire::web::place(&gateway.servers.config().registry.url);
    Ok(answer(StatusCode::OK, &RegistryList { registry, servers: servers.to_vec() }))
}

#[derive(Deserialize)]
struct LookQuery {
    name: String,
}

async fn look(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<LookQuery>,
) -> Result<Response, Response> {
    let (name, server, entry) = offered(&gateway, &query.name, "", &Given::new()).await?;
    let value = |asked: &AskedValue, required: bool| RegistryValue {
        key: asked.key.clone(),
        what: asked.what.clone(),
        required,
        secret: asked.is_secret,
        default: asked.value.clone(),
        choices: asked.choices.clone(),
    };
    let needed = entry.asked.iter().map(|asked| value(asked, true));
    let values = needed.chain(entry.optional.iter().map(|asked| value(asked, false))).collect();
    let told = server.status_message.map(|why| format!(": {why}")).unwrap_or_default();
    let notes = (server.status == ServerStatus::Deprecated).then(|| format!("It is deprecated{told}"));
    let offer = RegistryOffer { name, entry: entry.keys, values, notes: notes.into_iter().collect() };
    Ok(answer(StatusCode::OK, &offer))
}

async fn add(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Result<Response, Response> {
    let RegistryRequest { registry, name, values, check } = read(&body)?;
    let file = editable(&gateway)?;
    let given = values.into_iter().filter(|(_, value)| !value.trim().is_empty());
    let given: Given = given.map(|(key, value)| (key, vec![value])).collect();
    let (name, _, entry) = offered(&gateway, &registry, name.trim(), &given).await?;
    let imported = blocking(move || {
        let machine = Machine::this()?;
        let work = |options: hosts::ImportOptions<'_>| {
            hosts::add_server(&file, &name, &entry.keys, options, &machine)
        };
        let mut plan =
            hosts::keeping_secrets(keyring::UNATTENDED, false, work, ImportPlan::stores_secrets)?.0;
        plan.add_values(entry.asked.into_iter().filter_map(|asked| Some((asked.variable?, asked.value?))));
        Ok(plan)
    });
    added(&gateway, imported.await?, check, Vec::new()).await
}

/// Returns a server of the registry with its entry under a name here.
async fn offered(
    gateway: &Gateway,
    registered: &str,
    name: &str,
    given: &Given,
) -> Result<(String, FoundServer, ServerEntry), Response> {
    let reference = ServerReference::read(registered.trim());
    let reference = reference.ok_or_else(|| unfit("This is not the name of a server in a registry."))?;
    let registry = Registry::new(&gateway.servers.config().registry).map_err(unfit)?;
    let server = registry.server(&reference).await;
    let server = server.map_err(|why| wrong(StatusCode::BAD_GATEWAY, format!("{why}.")))?;
    if server.status == ServerStatus::Deleted {
        return Err(unfit("It has been withdrawn from the registry."));
    }
    let way = nonet_registry::ways(&server, None).map_err(unfit)?[0];
    if way.kind() == "mcpb" {
        return Err(unfit(format!("It is a bundle. Add it in a terminal: nonet add {}", server.detail.name)));
    }
    let name = if name.is_empty() { reference.short() } else { name.to_owned() };
    let entry = nonet_registry::entry(&server, way, None, &name, given).map_err(unfit)?;
    Ok((name, server.clone(), entry))
}
