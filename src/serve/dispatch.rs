//! From a request to its answer: the operation behind each method.

use std::sync::Arc;

use nonet_core::inquiry;
use nonet_peer::{
    Answered, Handler,
    client::ClientPeer,
    eras::{LISTEN, unknown_method},
    reply::Reply,
    request::{RequestBody, RequestContext, RequestParams},
};
use rmcp::{
    ErrorData,
    model::{
        ClientCapabilities, CompleteRequestParams, ErrorCode, GetPromptRequestParams, GetTaskParams,
        InitializeRequestParams, ReadResourceRequestParams, SetLevelRequestParams, SubscribeRequestParams,
        SubscriptionsListenRequestParams, TASKS_EXTENSION_ID, TaskAckResult, UpdateTaskParams,
    },
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{NonetServer, tasks};

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
fn typed(result: impl Serialize) -> Reply {
    plain(serde_json::to_value(result).expect("its types are JSON"))
}

fn plain(result: Value) -> Reply {
    Reply::Verbatim(result.into())
}

impl Handler for NonetServer {
    async fn handle(&self, request: RequestBody, context: &RequestContext) -> Answered {
        let answer = match request {
            RequestBody::Call(call, wish) => return self.call(call, wish, context).await,
            RequestBody::Invalid(error) => return Err(error),
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

    fn initialized(&self, peer: &Arc<ClientPeer>) {
        self.announce(peer);
    }

    fn ended(&self) {
        self.ended.cancel();
    }
}

impl NonetServer {
    async fn handle_other(
        &self,
        params: RequestParams,
        context: &RequestContext,
    ) -> Result<Reply, ErrorData> {
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
            "skills/list" => {
                // The list is one page.
                params.cursor()?;
                self.list_skills(context).await.map(plain)
            }
            "skills/get" | "resources/directory/read" => self.get_skill(params, context).await.map(plain),
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
            method => Err(unknown_method(method)),
        }
    }

    /// Answers a request about tasks: in a session in the form of 2025-11-25, else in the extension's.
    async fn handle_task(&self, params: RequestParams, context: &RequestContext) -> Result<Reply, ErrorData> {
        let method = params.method.clone();
        if !context.is_stateless() {
            let id = params.parse::<tasks::SessionTask>()?.task_id;
            let answer = tasks::session_request(&self.gateway, || self.who(context), &method, &id).await;
            return answer.unwrap_or_else(|| Err(unknown_method(&method))).map(plain);
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
            method => Err(unknown_method(method)),
        }
    }
}
