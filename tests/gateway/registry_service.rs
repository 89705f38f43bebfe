//! A registry of servers, with the API of the official one (OpenAPI, 2025-12-01), and files that it names.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A registry, running.
#[derive(Clone)]
pub struct RegistryService(Arc<Inner>);

struct Inner {
    /// Its address.
    url: String,
    /// The token that it wants.
    token: Option<&'static str>,
    /// The versions of servers, the latest last.
    servers: Mutex<Vec<Value>>,
    /// What it hosts besides.
    files: Mutex<BTreeMap<String, Vec<u8>>>,
}

const OFFICIAL: &str = "io.modelcontextprotocol.registry/official";

impl RegistryService {
    /// Starts a registry under a version of the API.
    pub fn start(version: &'static str, token: Option<&'static str>) -> Self {
        let (sender, started) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let url = format!("http://{}", listener.local_addr().expect("it is bound"));
                let (servers, files) = (Mutex::default(), Mutex::default());
                let service = Self(Arc::new(Inner { url, token, servers, files }));
                sender.send(service.clone()).expect("somebody waits");
                let router = Router::new()
                    .route(&format!("/{version}/servers"), get(list))
                    .route(&format!("/{version}/servers/{{name}}/versions/{{of}}"), get(one))
                    .route("/files/{name}", get(file))
                    .with_state(service);
                axum::serve(listener, router).await.expect("it serves");
            });
        });
        started.recv().expect("it starts")
    }

    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Publishes a version of a server, with what the registry says of it.
    pub fn publish(&self, server: Value, official: Value) {
        let mut servers = self.0.servers.lock().expect("it is free");
        for known in servers.iter_mut().filter(|known| known["server"]["name"] == server["name"]) {
            known["_meta"][OFFICIAL]["isLatest"] = json!(false);
        }
        let mut entry =
            json!({ "server": server, "_meta": { OFFICIAL: { "status": "active", "isLatest": true } } });
        for (key, value) in official.as_object().expect("an object") {
            entry["_meta"][OFFICIAL][key] = value.clone();
        }
        servers.push(entry);
    }

    /// Hosts a file, and returns its address.
    pub fn host(&self, name: &str, bytes: Vec<u8>) -> String {
        self.0.files.lock().expect("it is free").insert(name.into(), bytes);
        format!("{}/files/{name}", self.0.url)
    }

    fn refusal(&self, headers: &HeaderMap) -> Option<Response> {
        let token = self.0.token?;
        let given = headers.get(header::AUTHORIZATION).and_then(|given| given.to_str().ok());
        let is_good = given == Some(&*format!("Bearer {token}"));
        let told = json!({ "title": "Unauthorized", "status": 401, "detail": "a token is needed" });
        (!is_good).then(|| (StatusCode::UNAUTHORIZED, Json(told)).into_response())
    }
}

async fn list(
    State(service): State<RegistryService>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = service.refusal(&headers) {
        return refusal;
    }
    let search = query.get("search").cloned().unwrap_or_default();
    let latest = query.get("version").is_some_and(|version| version == "latest");
    let servers = service.0.servers.lock().expect("it is free");
    let fits = |entry: &&Value| {
        let of = |key: &str| entry["server"][key].as_str().unwrap_or_default().to_lowercase();
        let has_text =
            [of("name"), of("description")].iter().any(|text| text.contains(&search.to_lowercase()));
        has_text && (!latest || entry["_meta"][OFFICIAL]["isLatest"] == true)
    };
    let found: Vec<Value> = servers.iter().filter(fits).cloned().collect();
    Json(json!({ "servers": found, "metadata": { "count": found.len() } })).into_response()
}

async fn one(
    State(service): State<RegistryService>,
    Path((name, of)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = service.refusal(&headers) {
        return refusal;
    }
    let servers = service.0.servers.lock().expect("it is free");
    let found = servers.iter().rev().find(|entry| {
        let is_version = of == "latest" || entry["server"]["version"] == of;
        entry["server"]["name"] == name && is_version
    });
    match found {
        Some(entry) => Json(entry.clone()).into_response(),
        None => (StatusCode::NOT_FOUND, Json(json!({ "error": "Server not found" }))).into_response(),
    }
}

async fn file(State(service): State<RegistryService>, Path(name): Path<String>) -> Response {
    match service.0.files.lock().expect("it is free").get(&name) {
        Some(bytes) => bytes.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
