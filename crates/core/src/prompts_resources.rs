//! Prompts, resources and completions of all servers, for clients that use the protocol's own methods. Errors
//! are JSON-RPC errors, the only kind that these methods have.

use std::{sync::Arc, time::Duration};

use nonet_base::{json::set_member, text::clip};
use nonet_parts::skills::served::{self, ServedSkill};
use nonet_servers::{
    catalog::{GATEWAY, SKILLS, Tool},
    downstream::{CallControl, CallError, Connection, LogLevel, ResourceSubscription},
    policy::{ItemKind, PolicyVerdict},
    prompts_resources::{OfferedItem, PromptsResources, UriClaim, UriTarget, named_uri},
};
use nonet_text::{
    fault::{Fault, FaultCode},
    name::full_name,
};
use rmcp::model::{CompleteRequestParams, ErrorCode, ErrorData, Reference};
use serde_json::{Map, Value, json};

use super::{call::CallRequest, inspect::ContentInTransit};
use crate::{calls::Calls, gate::Gate};
use nonet_state::{
    conditions::stricter,
    grants::RequiredApproval,
    links,
    mail::Follower,
    questions::{ApprovalOutcome, HeldCall},
    session::Caller,
};

/// How much of a URI is shown, in characters.
const SHOWN_URI: usize = 200;
/// How long a request for an unknown item waits while servers start for the first time, and how often it
/// checks.
const LIST_WAIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);
/// The entries in one page of a list.
const PAGE: usize = 1_000;
/// The notices for a client, addressed by the URI of [`named_uri`] in Nonet's own category. They are not in
/// the list of resources, which contains only the servers' resources.
const NOTICES: &str = "notices";
/// The server is down. In the range that JSON-RPC reserves for applications.
const SERVER_DOWN: ErrorCode = ErrorCode(-31_000);

/// A resource that a client follows.
pub enum FollowedResource {
    /// A server's.
    OfServer(ResourceSubscription),
    /// The notices for the client.
    Notices(Follower),
}

impl FollowedResource {
    /// Waits for the next change. Returns `None` once its server's connection is retired, or the gateway has
    /// ended.
    pub async fn updated(&mut self) -> Option<()> {
        match self {
            Self::OfServer(subscription) => subscription.updated().await,
            Self::Notices(notices) => notices.next().await.map(drop),
        }
    }
}

/// One page of a list, and the cursor of the next.
#[derive(Debug, Default)]
pub struct ListPage {
    /// The definitions.
    pub entries: Vec<Value>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

impl Calls {
    /// Waits a moment for the lists of servers that start for the first time, unless `found` is already true.
    async fn listed(&self, caller: &Caller, found: impl Fn(&PromptsResources) -> bool) {
        self.publisher.listed().await;
        let enough = || {
            let gate = Gate::of(&self.publisher, &caller.session);
            found(gate.catalog().passed()) || gate.unlisted().is_empty() && gate.snapshot.generation > 0
        };
        if enough() {
            return;
        }
        let mut indexing = self.publisher.indexing();
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
        entries: impl Iterator<Item = &'a OfferedItem>,
        is_seen: impl Fn(&OfferedItem) -> bool,
        cursor: Option<&str>,
    ) -> Result<ListPage, ErrorData> {
        let from = match cursor {
            None => 0,
            Some(cursor) => cursor.parse().map_err(|_| {
                ErrorData::invalid_params(format!("`{cursor}` is not a cursor of this list"), None)
            })?,
        };
        let mut entries = entries.filter(|entry| is_seen(entry)).skip(from);
        let page = entries.by_ref().take(PAGE).map(|entry| entry.shown.clone()).collect();
        let next = entries.next().map(|_| (from + PAGE).to_string());
        Ok(ListPage { entries: page, next })
    }

    /// Lists the prompts visible to a caller.
    pub async fn prompts(&self, caller: &Caller, cursor: Option<&str>) -> Result<ListPage, ErrorData> {
        self.listed(caller, |_| false).await;
        let gate = Gate::of(&self.publisher, &caller.session);
        Self::shown(gate.catalog().passed().prompts(), |prompt| gate.shows_prompt(prompt), cursor)
    }

    /// Lists the resources visible to a caller.
    pub async fn resources(&self, caller: &Caller, cursor: Option<&str>) -> Result<ListPage, ErrorData> {
        self.listed(caller, |_| false).await;
        let gate = Gate::of(&self.publisher, &caller.session);
        let shown = |one: &OfferedItem| gate.shows_resource(one);
        let mut page = Self::shown(gate.catalog().passed().resources().iter(), shown, cursor)?;
        // The skills of the folders are few, and come with the first page.
        if cursor.is_none() && !gate.config().gateway.skills.is_empty() {
            let skills = self.served_skills(caller).await?;
            page.entries.extend(skills.iter().map(ServedSkill::resource));
        }
        Ok(page)
    }

    /// Lists the resource templates visible to a caller.
    pub async fn resource_templates(
        &self,
        caller: &Caller,
        cursor: Option<&str>,
    ) -> Result<ListPage, ErrorData> {
        self.listed(caller, |_| false).await;
        let gate = Gate::of(&self.publisher, &caller.session);
        Self::shown(gate.catalog().passed().templates().iter(), |one| gate.shows_resource(one), cursor)
    }

    /// Returns a server's answer to `prompts/get`, verbatim within the budget.
    pub async fn get_prompt(
        &self,
        caller: &Caller,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Value, ErrorData> {
        let gate = Gate::of(&self.publisher, &caller.session);
        let prompt = gate.prompt(caller, name, &arguments)?;
        let (connection, control, wait) = self.route(caller, &prompt.server)?;
        let (server, settings) = (&prompt.server, connection.settings());
        let passing = ContentInTransit { gate: &gate, caller, server, settings: &settings, label: name };
        self.may_leave(passing, &arguments).map_err(stopped)?;
        let (owner, budget) = (caller.owner(), caller.limits.max_result_bytes);
        let result = match connection.get_prompt(&prompt.own, arguments, control, wait).await {
            Ok(result) => result,
            Err(error) => {
                let error = self.inspected_error(passing, to_rpc_error(&prompt.server, error));
                return Err(self.keeping.kept.fit_error(&owner, error, budget).await);
            }
        };
        let mut result = self.inspected_and_marked(passing, result).await.map_err(stopped)?;
        let messages = result.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten();
        let blocks = messages.filter_map(|message| message.get_mut("content"));
        self.note_links(caller, &prompt.server, blocks);
        Ok(self.keeping.kept.fit_prompt(&owner, result, budget).await)
    }

    /// Returns a server's answer to `resources/read`, with the URIs that the client uses.
    pub async fn read_resource(&self, caller: &Caller, uri: &str) -> Result<Value, ErrorData> {
        if is_notices(caller, uri) {
            return Ok(self.read_notices(caller, uri).await);
        }
        if served::is_own(uri) {
            return self.skill_file(caller, uri).await;
        }
        self.listed(caller, |_| self.resource(caller, uri).is_ok()).await;
        let (server, own) = self.resource(caller, uri)?;
        self.read_from(caller, uri, &server, &own).await
    }

    /// Does the same for the tool `read_resource`, which can ask the user if the rules require that.
    pub(super) async fn read_resource_or_ask(
        &self,
        caller: &Caller,
        uri: &str,
        tool: &Tool,
    ) -> Result<Value, Fault> {
        let is_quiet = caller.session.app.is_some() || caller.session.unattended || is_notices(caller, uri);
        if !is_quiet
            && let Ok((_, server, own, PolicyVerdict::Approve(rule))) = self.judged_resource(caller, uri)
        {
            let params = Map::from_iter([("uri".to_string(), json!(uri))]);
            let question = format!("May the resource `{}` of `{server}` be read?", clip(&own, SHOWN_URI));
            let written = Value::Object(params.clone());
            let by = Gate::of(&self.publisher, &caller.session).approve_by(&server);
            let asked = RequiredApproval { rule, written, own: Some(question), by, is_of_call: false };
            match self.asking.approve(caller, tool, &params, asked).await? {
                ApprovalOutcome::By(_) => {}
                ApprovalOutcome::Unasked(unasked) => {
                    let (name, params) = (tool.full.to_string(), unasked.written.clone());
                    let held = CallRequest { name, params, ..CallRequest::default() };
                    return Err(self.asking.questions.hold(caller, *unasked, HeldCall::Tool(Box::new(held))));
                }
            }
            // The user may have taken minutes; the rules may have changed since.
            match self.judged_resource(caller, uri) {
                Ok((_, now, same, PolicyVerdict::Allow | PolicyVerdict::Approve(_)))
                    if now == server && same == own => {}
                _ => return self.read_resource(caller, uri).await.map_err(|error| unread(uri, &error)),
            }
            let read = self.read_from(caller, uri, &server, &own).await;
            return read.map_err(|error| unread(uri, &error));
        }
        self.read_resource(caller, uri).await.map_err(|error| unread(uri, &error))
    }

    /// Returns what a server has under a URI of its own, without a look inside.
    pub(super) async fn read_of_server(
        &self,
        caller: &Caller,
        server: &Arc<str>,
        uri: &str,
    ) -> Result<Value, ErrorData> {
        let (connection, control, wait) = self.route(caller, server)?;
        connection.read_resource(uri, control, wait).await.map_err(|error| to_rpc_error(server, error))
    }

    async fn read_from(
        &self,
        caller: &Caller,
        uri: &str,
        server: &Arc<str>,
        own: &str,
    ) -> Result<Value, ErrorData> {
        let (connection, control, wait) = self.route(caller, server)?;
        let (gate, settings) = (Gate::of(&self.publisher, &caller.session), connection.settings());
        let passing = ContentInTransit { gate: &gate, caller, server, settings: &settings, label: uri };
        let sent = Map::from_iter([("uri".to_string(), json!(own))]);
        self.may_leave(passing, &sent).map_err(stopped)?;
        let result = match connection.read_resource(own, control, wait).await {
            Ok(result) => result,
            Err(error) => {
                let error = match error {
                    CallError::Rpc(error) if error.code == ErrorCode::RESOURCE_NOT_FOUND => {
                        not_found(uri, &error.message)
                    }
                    other => to_rpc_error(server, other),
                };
                let error = self.inspected_error(passing, error);
                return Err(self
                    .keeping
                    .kept
                    .fit_error(&caller.owner(), error, caller.limits.max_result_bytes)
                    .await);
            }
        };
        let mut result = self.inspected_and_marked(passing, result).await.map_err(stopped)?;
        for content in result.get_mut("contents").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(inner) = content.get("uri").and_then(Value::as_str).map(String::from) else { continue };
            if inner == own {
                set_member(content, "uri", uri);
            } else if let Some(sealed) = self.linked(caller, server, &inner) {
                set_member(content, "uri", sealed);
            } else if own != uri {
                set_member(content, "uri", named_uri(server, &inner));
            }
        }
        Ok(result)
    }

    /// Returns a caller's waiting notices as a resource. Reading delivers them, so they do not appear again.
    async fn read_notices(&self, caller: &Caller, uri: &str) -> Value {
        let mut answer = json!({ "content": [] }).into();
        self.sessions.mail.deliver(caller, &mut answer, Vec::new()).await;
        let answer = answer.into_tree().await;
        let text = answer["content"][0]["text"].as_str().unwrap_or(r#"{"notices":[]}"#);
        json!({ "contents": [{ "uri": uri, "mimeType": "application/json", "text": text }] })
    }

    /// Resolves a resource that the caller may read to its server and its URI there.
    pub(super) fn resource(&self, caller: &Caller, uri: &str) -> Result<(Arc<str>, String), ErrorData> {
        let (_, server, own, verdict) = self.judged_resource(caller, uri)?;
        match verdict {
            PolicyVerdict::Allow => Ok((server, own)),
            PolicyVerdict::Approve(rule) => Err(not_found(
                uri,
                &format!(
                    "the rule `{rule}` requires the user to approve each read, and this method cannot ask; the tool `gateway.read_resource` can"
                ),
            )),
            PolicyVerdict::Deny(rule) if rule.ends_with(".unlisted_resources") => Err(not_found(
                uri,
                &format!(
                    "`{server}` does not list it, no result linked to it, and the configuration does not allow such URIs (`{rule} = true`)"
                ),
            )),
            PolicyVerdict::Deny(rule) => {
                Err(not_found(uri, &format!("the rule `{rule}` of the configuration forbids it")))
            }
        }
    }

    /// Resolves a resource, and returns the rules' verdict on reading it.
    pub(super) fn judged_resource(
        &self,
        caller: &Caller,
        uri: &str,
    ) -> Result<(Gate, Arc<str>, String, PolicyVerdict), ErrorData> {
        let gate = Gate::of(&self.publisher, &caller.session);
        let seen = |server: &str| gate.sees(server);
        if let Some((server, own)) = self.sessions.seal.open(caller.session.owner(), uri)
            && let Some(connection) = gate.connection(server)
        {
            let server = connection.name.clone();
            let verdict = gate.verdict_on_resource(&server, own, UriClaim::Linked);
            let on_read = verdict_on_read(&gate, caller, ItemKind::Linked, (&server, own));
            let verdict = stricter(verdict, on_read);
            return Ok((gate, server, own.into(), verdict));
        }
        let links = &caller.session.of_client().links;
        match gate.catalog().passed().resolve_uri(uri, &seen, &|uri| links.of(uri)) {
            UriTarget::Server(server, own, claim) => {
                let mut verdict = gate.verdict_on_resource(&server, &own, claim);
                // A link may lead to a resource that the profile does not list.
                if claim == UriClaim::Listed
                    && verdict != PolicyVerdict::Allow
                    && links.of(&own).contains(&server)
                {
                    verdict = gate.verdict_on_resource(&server, &own, UriClaim::Linked);
                }
                let kind = match claim {
                    UriClaim::Named => ItemKind::Unlisted,
                    UriClaim::Listed | UriClaim::Linked => ItemKind::Resource,
                };
                let verdict = stricter(verdict, verdict_on_read(&gate, caller, kind, (&server, &own)));
                Ok((gate, server, own, verdict))
            }
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
            return Ok(FollowedResource::Notices(self.sessions.mail.follow(&caller.session)));
        }
        self.listed(caller, |_| self.resource(caller, uri).is_ok()).await;
        let (server, own) = self.resource(caller, uri)?;
        let (connection, ..) = self.route(caller, &server)?;
        let subscribed = connection.subscribe(own).await;
        let (gate, settings) = (Gate::of(&self.publisher, &caller.session), connection.settings());
        let passing =
            ContentInTransit { gate: &gate, caller, server: &server, settings: &settings, label: uri };
        subscribed
            .map(FollowedResource::OfServer)
            .map_err(|error| self.inspected_error(passing, to_rpc_error(&server, error)))
    }

    /// Returns a server's answer to `completion/complete`, verbatim.
    pub async fn complete(
        &self,
        caller: &Caller,
        mut params: CompleteRequestParams,
    ) -> Result<Value, ErrorData> {
        let gate = Gate::of(&self.publisher, &caller.session);
        let unknown = |what: &str| ErrorData::invalid_params(format!("there is no {what}"), None);
        let server = match &mut params.r#ref {
            Reference::Prompt(prompt) => {
                let entry = gate.prompt(caller, &prompt.name, &Map::new())?;
                prompt.name.clone_from(&entry.own);
                entry.server.clone()
            }
            Reference::Resource(resource) => {
                let is_there = |server: &str| gate.sees(server);
                match gate.catalog().passed().template(&resource.uri, &is_there) {
                    Some(entry) if gate.shows_resource(entry) => {
                        resource.uri.clone_from(&entry.own);
                        entry.server.clone()
                    }
                    Some(_) => return Err(unknown("such resource template")),
                    None => {
                        let (server, own) = self.resource(caller, &resource.uri)?;
                        resource.uri = own;
                        server
                    }
                }
            }
            _ => return Err(unknown("such reference")),
        };
        let (connection, control, wait) = self.route(caller, &server)?;
        let settings = connection.settings();
        let passing =
            ContentInTransit { gate: &gate, caller, server: &server, settings: &settings, label: &server };
        let sent = [("argument", json!(params.argument)), ("context", json!(params.context))];
        self.may_leave(passing, &sent.map(|(key, value)| (key.to_string(), value)).into_iter().collect())
            .map_err(stopped)?;
        let given = connection.complete(params, control, wait).await;
        let given = given.map_err(|error| self.inspected_error(passing, to_rpc_error(&server, error)))?;
        self.inspected(passing, given).await.map_err(stopped)
    }

    /// Returns how to ask a server on behalf of a caller: within half of the client's own timeout.
    fn route(
        &self,
        caller: &Caller,
        server: &Arc<str>,
    ) -> Result<(Arc<Connection>, CallControl, Duration), ErrorData> {
        let Some(connection) =
            Gate::of(&self.publisher, &caller.session).connection_for(&self.servers, caller, server)
        else {
            return Err(ErrorData::new(SERVER_DOWN, format!("`{server}` is no longer configured"), None));
        };
        let patience = caller.limits.soft_deadline / 2;
        let control = CallControl {
            timeout: connection.settings().timeout.min(patience),
            cancel: caller.cancel.clone(),
            progress: None,
            meta: caller.meta.clone(),
            asker: caller.asker.clone(),
            owner: caller.account.id,
        };
        Ok((connection, control, patience))
    }

    /// Records the log level that a session wants from servers, and sends it to the servers.
    pub fn want_log(&self, session: u64, level: LogLevel) {
        self.servers.want_log(session, level, |id| self.sessions.has(id));
    }

    /// Remembers the server of each link in content blocks, so that clients can read the link. In a session,
    /// links stay unchanged. Without a session, a link gets a URI that names its server, unless every caller
    /// reads the link at that server anyway.
    pub(super) fn note_links<'a>(
        &self,
        caller: &Caller,
        server: &Arc<str>,
        blocks: impl Iterator<Item = &'a mut Value>,
    ) {
        for block in blocks {
            let link = match block.get("type").and_then(Value::as_str) {
                Some("resource_link") => Some(block),
                Some("resource") => block.get_mut("resource"),
                _ => None,
            };
            let Some(link) = link else { continue };
            let sealed =
                link.get("uri").and_then(Value::as_str).and_then(|uri| self.linked(caller, server, uri));
            if let Some(sealed) = sealed {
                set_member(link, "uri", sealed);
            }
        }
    }

    /// Records a link for the caller's session. Without a session, returns the URI under which the caller
    /// reads the link, if it differs.
    fn linked(&self, caller: &Caller, server: &Arc<str>, uri: &str) -> Option<String> {
        if caller.lasting {
            caller.session.of_client().links.note(uri, server);
            return None;
        }
        if uri.len() > links::MAX_LINK || self.publisher.snapshot().catalog.passed().is_sole(server, uri) {
            return None;
        }
        Some(self.sessions.seal.close(caller.session.owner(), server, uri))
    }
}

impl Gate {
    fn shows_prompt(&self, prompt: &OfferedItem) -> bool {
        !matches!(self.verdict_on_prompt(&prompt.server, &prompt.own), PolicyVerdict::Deny(_))
    }

    fn shows_resource(&self, resource: &OfferedItem) -> bool {
        let verdict = self.verdict_on_resource(&resource.server, &resource.own, UriClaim::Listed);
        !matches!(verdict, PolicyVerdict::Deny(_))
    }

    /// Finds a prompt that the caller may get with these arguments.
    fn prompt(
        &self,
        caller: &Caller,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<&OfferedItem, ErrorData> {
        let is_there = |server: &str| !self.is_foreign(server);
        let found = self.catalog().passed().prompt(name, &self.world.names, &is_there);
        let refused = |why: String| Err(ErrorData::invalid_params(why, None));
        let Some(prompt) = found.filter(|prompt| self.sees(&prompt.server)) else {
            return refused(format!("there is no prompt `{name}`"));
        };
        let of = (&*prompt.server, &*prompt.own);
        let on_use = self.verdict_on_use(caller, ItemKind::Prompt, of, arguments);
        if let PolicyVerdict::Deny(rule) = &on_use {
            return refused(format!("the rule `{rule}` of the configuration forbids this use of `{name}`"));
        }
        match stricter(self.verdict_on_prompt(&prompt.server, &prompt.own), on_use) {
            PolicyVerdict::Allow => Ok(prompt),
            PolicyVerdict::Deny(_) => refused(format!("there is no prompt `{name}`")),
            PolicyVerdict::Approve(rule) => {
                let skill = guide_name(&prompt.server, &prompt.own);
                refused(format!(
                    "the rule `{rule}` requires the user to approve each use of `{name}`, and this method cannot ask; execute_tool with `{skill}` can"
                ))
            }
        }
    }
}

/// Returns what conditions say about reading a resource.
fn verdict_on_read(gate: &Gate, caller: &Caller, kind: ItemKind, of: (&str, &str)) -> PolicyVerdict {
    let params = Map::from_iter([("uri".to_string(), json!(of.1))]);
    gate.verdict_on_use(caller, kind, of, &params)
}

/// Returns the name of a prompt among tools.
fn guide_name(server: &str, prompt: &str) -> String {
    full_name(SKILLS, &format!("{server}/{prompt}"))
}

/// Whether the URI is the one of the client's notices. Apps, watches and schedules, which call tools in a
/// client's name, do not get them.
fn is_notices(caller: &Caller, uri: &str) -> bool {
    caller.session.mail().is_some() && uri == named_uri(GATEWAY, NOTICES)
}

/// Builds the error for content that may not pass because it contains a secret.
fn stopped(fault: Fault) -> ErrorData {
    ErrorData::invalid_request(fault.message, fault.details.map(|details| *details))
}

fn not_found(uri: &str, why: &str) -> ErrorData {
    ErrorData::resource_not_found(format!("`{uri}` cannot be read: {why}"), Some(json!({ "uri": uri })))
}

/// Builds the fault for a resource that the tool `read_resource` could not read.
fn unread(uri: &str, error: &ErrorData) -> Fault {
    let code = match error.code {
        ErrorCode::RESOURCE_NOT_FOUND | ErrorCode::INVALID_PARAMS => FaultCode::NotFound,
        _ => FaultCode::UpstreamError,
    };
    Fault::new(code, format!("`{}` cannot be read: {}.", clip(uri, SHOWN_URI), error.message))
}

/// Turns a failed request into a JSON-RPC error. A server's own error stays unchanged.
fn to_rpc_error(server: &str, error: CallError) -> ErrorData {
    match error {
        CallError::Rpc(error) => error,
        CallError::TimedOut(_) | CallError::Unreadable(_) => {
            ErrorData::internal_error(format!("`{server}`: {error}"), None)
        }
        other => ErrorData::new(SERVER_DOWN, format!("`{server}`: {other}"), None),
    }
}
