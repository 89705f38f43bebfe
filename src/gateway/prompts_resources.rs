//! Prompts, resources and completions of all servers, for clients that use the protocol's own methods. Errors
//! are JSON-RPC errors: these methods have no other kind.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rmcp::model::{CompleteRequestParams, ErrorCode, ErrorData, Reference};
use serde_json::{Map, Value, json};

use super::{Gateway, gate::Gate, mail::Follower, session::Caller};
use crate::{
    catalog::GATEWAY,
    downstream::{CallError, Connection, Control, LogLevel, ResourceSubscription},
    prompts_resources::{OfferedItem, PromptsResources, UriTarget, named_uri},
};

/// How many links of results a session remembers, to find the server when a client reads one.
const LINKS: usize = 1_000;
/// How long a request for an unknown item waits while servers start for the first time, and how often it
/// checks.
const LIST_WAIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
/// The entries in one page of a list.
const PAGE: usize = 1_000;
/// The notices for a client, by the URI of [`named_uri`] for Nonet's own category. Not in the list of resources, which is the
/// servers'.
const NOTICES: &str = "notices";
/// In the range that JSON-RPC leaves to applications: the server is down.
const SERVER_DOWN: ErrorCode = ErrorCode(-31_000);

/// The server of each link in results: the last one to return the link.
#[derive(Debug, Default)]
pub(super) struct Links(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    of: HashMap<String, Arc<str>>,
    order: VecDeque<String>,
}

impl Links {
    fn note(&self, uri: &str, server: &Arc<str>) {
        let mut known = self.0.lock();
        if known.of.insert(uri.into(), server.clone()).is_some() {
            return;
        }
        if known.order.len() == LINKS
            && let Some(oldest) = known.order.pop_front()
        {
            known.of.remove(&oldest);
        }
        known.order.push_back(uri.into());
    }

    fn of(&self, uri: &str) -> Option<Arc<str>> {
        self.0.lock().of.get(uri).cloned()
    }
}

/// A resource that a client follows.
pub enum FollowedResource {
    /// A server's.
    OfServer(ResourceSubscription),
    /// The notices for the client.
    Notices(Follower),
}

impl FollowedResource {
    /// Waits for the next change. Returns `None` once its server's connection is retired, or the gateway has ended.
    pub async fn updated(&mut self) -> Option<()> {
        match self {
            Self::OfServer(subscription) => subscription.updated().await,
            Self::Notices(notices) => notices.next().await.map(drop),
        }
    }
}

/// One page of a list, and the cursor of the next.
#[derive(Debug, Default)]
pub struct Page {
    /// The definitions.
    pub entries: Vec<Value>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

impl Gateway {
    /// Waits a moment for the lists of servers that start for the first time, unless `found` is already true.
    async fn listed(&self, caller: &Caller, found: impl Fn(&PromptsResources) -> bool) {
        self.recalled_lists().await;
        let enough = || {
            let gate = self.gate(&caller.session);
            found(gate.catalog().passed()) || gate.unlisted().is_empty() && gate.snapshot.generation > 0
        };
        if enough() {
            return;
        }
        let mut indexing = self.indexing();
        let settled = async {
            while !enough() {
                tokio::select! {
                    changed = indexing.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(POLL) => {}
                }
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(LIST_WAIT.min(caller.limits.soft_deadline / 2), settled) => {}
            () = caller.cancel.cancelled() => {}
        }
    }

    fn shown<'a>(
        gate: &Gate,
        entries: impl Iterator<Item = &'a OfferedItem>,
        cursor: Option<&str>,
    ) -> Result<Page, ErrorData> {
        let from = match cursor {
            None => 0,
            Some(cursor) => cursor.parse().map_err(|_| {
                ErrorData::invalid_params(format!("`{cursor}` is not a cursor of this list"), None)
            })?,
        };
        let mut seen: HashMap<&str, bool> = HashMap::new();
        let mut entries = entries
            .filter(|entry| *seen.entry(&entry.server).or_insert_with(|| gate.sees(&entry.server)))
            .skip(from);
        let page = entries.by_ref().take(PAGE).map(|entry| entry.shown.clone()).collect();
        let next = entries.next().map(|_| (from + PAGE).to_string());
        Ok(Page { entries: page, next })
    }

    /// Lists the prompts visible to a caller.
    pub async fn prompts(&self, caller: &Caller, cursor: Option<&str>) -> Result<Page, ErrorData> {
        self.listed(caller, |_| false).await;
        let gate = self.gate(&caller.session);
        Self::shown(&gate, gate.catalog().passed().prompts(), cursor)
    }

    /// Lists the resources visible to a caller.
    pub async fn resources(&self, caller: &Caller, cursor: Option<&str>) -> Result<Page, ErrorData> {
        self.listed(caller, |_| false).await;
        let gate = self.gate(&caller.session);
        Self::shown(&gate, gate.catalog().passed().resources().iter(), cursor)
    }

    /// Lists the resource templates visible to a caller.
    pub async fn resource_templates(&self, caller: &Caller, cursor: Option<&str>) -> Result<Page, ErrorData> {
        self.listed(caller, |_| false).await;
        let gate = self.gate(&caller.session);
        Self::shown(&gate, gate.catalog().passed().templates().iter(), cursor)
    }

    /// Returns a server's answer to `prompts/get`, verbatim.
    pub async fn get_prompt(
        &self,
        caller: &Caller,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Value, ErrorData> {
        let gate = self.gate(&caller.session);
        let prompt = gate.catalog().passed().prompt(name).filter(|prompt| gate.sees(&prompt.server));
        let Some(prompt) = prompt else {
            return Err(ErrorData::invalid_params(format!("there is no prompt `{name}`"), None));
        };
        let (connection, control, wait) = self.route(caller, &prompt.server)?;
        let result = connection.get_prompt(&prompt.own, arguments, control, wait).await;
        let result = result.map_err(|error| to_rpc_error(&prompt.server, error))?;
        let messages = result.get("messages").and_then(Value::as_array).into_iter().flatten();
        self.note_links(caller, &prompt.server, messages.filter_map(|message| message.get("content")));
        Ok(result)
    }

    /// Returns a server's answer to `resources/read`, with the URIs that the client uses.
    pub async fn read_resource(&self, caller: &Caller, uri: &str) -> Result<Value, ErrorData> {
        if is_notices(caller, uri) {
            return Ok(self.read_notices(caller, uri).await);
        }
        self.listed(caller, |_| self.resource(caller, uri).is_ok()).await;
        let (server, own) = self.resource(caller, uri)?;
        let (connection, control, wait) = self.route(caller, &server)?;
        let result = connection.read_resource(&own, control, wait).await;
        let mut result = result.map_err(|error| match error {
            CallError::Rpc(error) if error.code == ErrorCode::RESOURCE_NOT_FOUND => {
                not_found(uri, &error.message)
            }
            other => to_rpc_error(&server, other),
        })?;
        if own != uri {
            for content in result.get_mut("contents").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(inner) = content.get("uri").and_then(Value::as_str) {
                    content["uri"] = json!(if inner == own { uri.into() } else { named_uri(&server, inner) });
                }
            }
        }
        Ok(result)
    }

    /// Returns the notices that wait for a caller as a resource. They are told by it, so they do not come again.
    async fn read_notices(&self, caller: &Caller, uri: &str) -> Value {
        let mut answer = json!({ "content": [] });
        self.mail.deliver(caller, &mut answer, Vec::new()).await;
        let text = answer["content"][0]["text"].as_str().unwrap_or(r#"{"notices":[]}"#);
        json!({ "contents": [{ "uri": uri, "mimeType": "application/json", "text": text }] })
    }

    /// Resolves a resource to its server and its URI there.
    pub(super) fn resource(&self, caller: &Caller, uri: &str) -> Result<(Arc<str>, String), ErrorData> {
        let gate = self.gate(&caller.session);
        let linked = self.sessions.links(caller).of(uri);
        let seen = |server: &str| gate.sees(server);
        match gate.catalog().passed().resolve_uri(uri, &seen, linked) {
            UriTarget::Server(server, own) => Ok((server, own)),
            UriTarget::Ambiguous(uris) => Err(ErrorData::invalid_params(
                format!("several servers have `{uri}`; read it by one of: {}", uris.join(", ")),
                Some(json!({ "uri": uri, "uris": uris })),
            )),
            UriTarget::Unknown => Err(not_found(uri, "no server lists it or has returned a link to it")),
        }
    }

    /// Follows a resource for a caller until the returned value is dropped.
    pub async fn follow_resource(&self, caller: &Caller, uri: &str) -> Result<FollowedResource, ErrorData> {
        if is_notices(caller, uri) {
            return Ok(FollowedResource::Notices(self.follow_notices(&caller.session)));
        }
        self.listed(caller, |_| self.resource(caller, uri).is_ok()).await;
        let (server, own) = self.resource(caller, uri)?;
        let (connection, ..) = self.route(caller, &server)?;
        let subscribed = connection.subscribe(own).await;
        subscribed.map(FollowedResource::OfServer).map_err(|error| to_rpc_error(&server, error))
    }

    /// Returns a server's answer to `completion/complete`, verbatim.
    pub async fn complete(
        &self,
        caller: &Caller,
        mut params: CompleteRequestParams,
    ) -> Result<Value, ErrorData> {
        let gate = self.gate(&caller.session);
        let passed = gate.catalog().passed();
        let unknown = |what: &str| ErrorData::invalid_params(format!("there is no {what}"), None);
        let server = match &mut params.r#ref {
            Reference::Prompt(prompt) => {
                let entry = passed.prompt(&prompt.name).filter(|entry| gate.sees(&entry.server));
                let entry = entry.ok_or_else(|| unknown("such prompt"))?;
                prompt.name.clone_from(&entry.own);
                entry.server.clone()
            }
            Reference::Resource(resource) => match passed.template(&resource.uri) {
                Some(entry) => {
                    resource.uri.clone_from(&entry.own);
                    entry.server.clone()
                }
                None => {
                    let (server, own) = self.resource(caller, &resource.uri)?;
                    resource.uri = own;
                    server
                }
            },
            _ => return Err(unknown("such reference")),
        };
        if !gate.sees(&server) {
            return Err(unknown("such prompt or resource"));
        }
        let (connection, control, wait) = self.route(caller, &server)?;
        connection.complete(params, control, wait).await.map_err(|error| to_rpc_error(&server, error))
    }

    /// How to ask a server on behalf of a caller: within half of the client's own timeout.
    fn route(
        &self,
        caller: &Caller,
        server: &Arc<str>,
    ) -> Result<(Arc<Connection>, Control, Duration), ErrorData> {
        let Some(connection) = self.connection_for(caller, server) else {
            return Err(ErrorData::new(SERVER_DOWN, format!("`{server}` is no longer configured"), None));
        };
        let patience = caller.limits.soft_deadline / 2;
        let control = Control {
            timeout: connection.settings().timeout.min(patience),
            cancel: caller.cancel.clone(),
            progress: None,
            meta: caller.meta.clone(),
            asker: caller.asker.clone(),
        };
        Ok((connection, control, patience))
    }

    /// Records the log level that a session wants from servers, and sends it to the servers.
    pub fn want_log(&self, session: u64, level: LogLevel) {
        self.servers.want_log(session, level, |id| self.sessions.has(id));
    }

    /// Remembers the server of each link in content blocks, so that clients can read the link. Leaves the
    /// blocks unchanged.
    pub(super) fn note_links<'a>(
        &self,
        caller: &Caller,
        server: &Arc<str>,
        blocks: impl Iterator<Item = &'a Value>,
    ) {
        for block in blocks {
            let link = match block.get("type").and_then(Value::as_str) {
                Some("resource_link") => Some(block),
                Some("resource") => block.get("resource"),
                _ => None,
            };
            if let Some(uri) = link.and_then(|link| link.get("uri")?.as_str()) {
                self.sessions.links(caller).note(uri, server);
            }
        }
    }
}

/// Whether these are the notices for a client. What calls tools in a client's name (an app, a watch, a schedule) does not get
/// them.
fn is_notices(caller: &Caller, uri: &str) -> bool {
    caller.session.mail().is_some() && uri == named_uri(GATEWAY, NOTICES)
}

fn not_found(uri: &str, why: &str) -> ErrorData {
    ErrorData::resource_not_found(format!("`{uri}` cannot be read: {why}"), Some(json!({ "uri": uri })))
}

/// Turns a failed request into a JSON-RPC error. A server's own error stays as it is.
fn to_rpc_error(server: &str, error: CallError) -> ErrorData {
    match error {
        CallError::Rpc(error) => error,
        CallError::TimedOut(_) | CallError::Unreadable(_) => {
            ErrorData::internal_error(format!("`{server}`: {error}"), None)
        }
        other => ErrorData::new(SERVER_DOWN, format!("`{server}`: {other}"), None),
    }
}
