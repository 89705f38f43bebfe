//! From a request to its answer: which methods there are in which era, and what answers them.

use nonet_base::text::clip;
use nonet_core::inquiry;
use rmcp::{
    ErrorData,
    model::{
        ClientCapabilities, CompleteRequestParams, ErrorCode, GetPromptRequestParams, GetTaskParams,
        InitializeRequestParams, ProtocolVersion, ReadResourceRequestParams, SetLevelRequestParams,
        SubscribeRequestParams, SubscriptionsListenRequestParams, TASKS_EXTENSION_ID, TaskAckResult,
        UpdateTaskParams,
    },
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    NonetServer,
    calls::CallReply,
    request::{ClientRequest, RequestBody, RequestContext, RequestParams},
    tasks,
};

/// The methods of the handshake's era only.
const OF_SESSIONS: [&str; 3] = ["ping", "resources/subscribe", "resources/unsubscribe"];
const LISTEN: &str = "subscriptions/listen";

/// Refuses a request whose metadata is not what its era wants, or whose method its era does not have.
pub(super) fn check(method: &str, context: &RequestContext) -> Result<(), ErrorData> {
    // Most requests of a session say nothing.
    if !context.is_inline && context.meta.0.0.is_empty() && !matches!(method, LISTEN | "server/discover") {
        return Ok(());
    }
    let version = context.meta.protocol_version().filter(|_| method != "initialize");
    if let Some(version) = &version
        && !ProtocolVersion::KNOWN_VERSIONS.contains(version)
    {
        let known = ProtocolVersion::KNOWN_VERSIONS;
        return Err(ErrorData::unsupported_protocol_version(version.clone(), known));
    }
    let is_complete = method != "initialize"
        && (method == "server/discover"
            || context.is_inline && !(method == "ping" && version.is_none())
            || version.as_ref().is_some_and(|version| !version.has_initialize()));
    if is_complete {
        let missing = context.meta.missing_required_keys(&ProtocolVersion::V_2026_07_28);
        if !missing.is_empty() {
            let message =
                format!("request _meta is missing or has malformed required fields: {}", missing.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        }
    }
    let is_of_sessions = !is_complete && version.is_none_or(|version| version.has_initialize());
    match (OF_SESSIONS.contains(&method), method == LISTEN) {
        (true, _) if !is_of_sessions => Err(unknown(method)),
        (_, true) if is_of_sessions => Err(unknown(method)),
        _ => Ok(()),
    }
}

fn unknown(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, clip(method, 200), None)
}

/// Refuses a request about tasks of a client that has not declared them.
fn needs_tasks(context: &RequestContext) -> Result<(), ErrorData> {
    match context.client_capabilities().is_some_and(|can| can.supports_tasks()) {
        true => Ok(()),
        false => {
            let mut needed = ClientCapabilities::default();
            needed.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), Map::new())].into());
            Err(ErrorData::missing_required_client_capability(needed))
        }
    }
}

/// Returns a result of rmcp's types.
fn typed(result: impl Serialize) -> CallReply {
    plain(serde_json::to_value(result).expect("its types are JSON"))
}

fn plain(result: Value) -> CallReply {
    CallReply::Verbatim(result.into())
}

impl NonetServer {
    /// Answers a request that [`check`] has admitted.
    pub(super) async fn answer(
        &self,
        request: RequestBody,
        context: &RequestContext,
    ) -> Result<CallReply, ErrorData> {
        let answer = match request {
            RequestBody::Call(call, _) => return self.call(call, context).await,
            RequestBody::Invalid(why) => return Err(RequestBody::unreadable(&why)),
            // Boxed: calls are what happens most.
            RequestBody::Other(params) => Box::pin(self.handle_other(params, context)).await,
        };
        answer.map_err(|mut error| {
            if context.is_stateless() && error.code == ErrorCode::RESOURCE_NOT_FOUND {
                error.code = ErrorCode::INVALID_PARAMS;
            }
            error
        })
    }

    async fn handle_other(
        &self,
        params: RequestParams,
        context: &RequestContext,
    ) -> Result<CallReply, ErrorData> {
        let empty = || plain(json!({}));
        match &*params.method {
            "initialize" => {
                let request: InitializeRequestParams = params.parse()?;
                Ok(typed(self.initialize(request, context).await?))
            }
            "server/discover" => self.discover(context).await.map(typed),
            "ping" => Ok(empty()),
            "tools/list" => {
                // The list is one page.
                params.cursor()?;
                Ok(plain(self.list_tools(context).await))
            }
            "prompts/list" => self.list_prompts(params.cursor()?, context).await.map(plain),
            "prompts/get" => self.get_prompt(params.parse::<GetPromptRequestParams>()?, context).await,
            "resources/list" => self.list_resources(params.cursor()?, context).await.map(plain),
            "resources/templates/list" => {
                self.list_resource_templates(params.cursor()?, context).await.map(plain)
            }
            "resources/read" => {
                self.read_resource(params.parse::<ReadResourceRequestParams>()?, context).await
            }
            "resources/subscribe" => {
                self.subscribe(params.parse::<SubscribeRequestParams>()?.uri, context).await.map(|()| empty())
            }
            "resources/unsubscribe" => {
                self.unsubscribe(&params.parse::<SubscribeRequestParams>()?.uri);
                Ok(empty())
            }
            "completion/complete" => {
                self.complete(params.parse::<CompleteRequestParams>()?, context).await.map(plain)
            }
            "logging/setLevel" => {
                self.set_level(params.parse::<SetLevelRequestParams>()?.level.into());
                Ok(empty())
            }
            LISTEN => {
                let wanted = params.parse::<SubscriptionsListenRequestParams>()?.notifications;
                self.listen(wanted, context).await.map(typed)
            }
            method if method.starts_with("tasks/") => self.handle_task(params, context).await,
            inquiry::METHOD => self.inquire(params.parse()?, context).await.map(plain),
            method => Err(unknown(method)),
        }
    }

    /// Answers a request about tasks: in the form of 2025-11-25 on a connection with both directions, else in the extension's.
    async fn handle_task(
        &self,
        params: RequestParams,
        context: &RequestContext,
    ) -> Result<CallReply, ErrorData> {
        let method = params.method.clone();
        if !self.http && !context.is_stateless() {
            let id = params.parse::<tasks::SessionTask>()?.task_id;
            let answer = tasks::session_request(&self.gateway, || self.who(context), &method, &id).await;
            return answer.unwrap_or_else(|| Err(unknown(&method))).map(plain);
        }
        let who = || self.who(context);
        match &*method {
            "tasks/get" => {
                needs_tasks(context)?;
                let id = params.parse::<GetTaskParams>()?.task_id;
                tasks::get(&self.gateway, &who(), &id).await.map(typed)
            }
            "tasks/update" => {
                needs_tasks(context)?;
                let update: UpdateTaskParams = params.parse()?;
                tasks::update(&self.gateway, &who(), &update.task_id, &update.input_responses).await?;
                Ok(typed(TaskAckResult::new()))
            }
            "tasks/cancel" => {
                needs_tasks(context)?;
                let id = params.parse::<GetTaskParams>()?.task_id;
                tasks::cancel(&self.gateway, &who(), &id).await?;
                Ok(typed(TaskAckResult::new()))
            }
            method => Err(unknown(method)),
        }
    }
}

impl ClientRequest {
    /// Returns the version that the client proposes, if the request opens a session.
    pub(super) fn proposed_version(&self) -> Option<&str> {
        match &self.body {
            RequestBody::Other(params) if &*params.method == "initialize" => params.text("protocolVersion"),
            _ => None,
        }
    }
}
