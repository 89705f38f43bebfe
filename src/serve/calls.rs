//! `tools/call`, on any transport.

use bytes::Bytes;
use nonet_core::run::ended_job;
use nonet_meta::MetaAnswer;
use nonet_state::session::Caller;
use nonet_text::results::CallResult;
use nonet_wire::rmcp::carry_json;
use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, CreateTaskResult, InputRequiredResult},
    service::RequestContext,
};
use serde_json::{Value, json};

use super::{
    NonetServer,
    in_flight::{self, RequestOutcome},
    origin::RequestOrigin,
    plain_calls, tasks,
};

/// The outcome of a call.
pub(super) enum CallReply {
    /// The result, verbatim.
    Verbatim(CallResult),
    /// The client has to answer first.
    Asks(Box<InputRequiredResult>),
    /// The call continues as a task of the extension.
    Task(CreateTaskResult),
}

/// A call whose client wants a task.
pub(super) struct CallAsTask {
    pub caller: Caller,
    pub tool: String,
}

impl CallReply {
    /// Returns the request's result as JSON in pieces, between two given ones.
    pub(super) fn written(self, before: &[u8], after: &[u8]) -> Vec<Bytes> {
        let other = |json: serde_json::Result<Value>| CallResult::from(json.expect("its types are JSON"));
        let result = match self {
            Self::Verbatim(result) => result,
            Self::Asks(asked) => other(serde_json::to_value(asked)),
            Self::Task(task) => other(serde_json::to_value(task)),
        };
        result.written(before, after)
    }

    /// Converts the outcome to rmcp's types.
    pub(super) fn into_response(self) -> CallToolResponse {
        match self {
            Self::Verbatim(result) => {
                let mut carrier = CallToolResult::default();
                carrier.meta = Some(carry_json(result.into_json()));
                CallToolResponse::Complete(carrier)
            }
            Self::Asks(asked) => CallToolResponse::InputRequired(*asked),
            Self::Task(task) => CallToolResponse::Task(task),
        }
    }
}

impl NonetServer {
    /// Calls a tool or a meta-tool.
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallReply, ErrorData> {
        let stateless = context.is_stateless();
        let level = self.log_level_for(context, stateless);
        let what = || in_flight::called(&request, stateless);
        let profile = self.session.profile.as_deref();
        let (state, given) = (request.request_state.as_deref(), request.input_responses.as_ref());
        let begun = plain_calls::take(&context.extensions).map(Ok);
        let account = || self.who(context).account;
        let (open, at_once) =
            match begun.or_else(|| self.parkings.calls.resume(what, profile, account, state, given)) {
                Some(open) => (open?, None),
                None => self.open_call(request, context, level),
            };
        let answer = match open.run(&self.parkings.calls, context, level).await {
            RequestOutcome::Ended(answer) => answer,
            RequestOutcome::Asks(asked) => return Ok(CallReply::Asks(asked)),
        };
        let answer = match (answer, at_once) {
            // A client that wants a task gets one, even if the call has already ended.
            (MetaAnswer::Result(result), Some(task)) => {
                MetaAnswer::Task(ended_job(&self.gateway.jobs, &task.caller, &task.tool, result).await)
            }
            (answer, _) => answer,
        };
        Ok(match answer {
            MetaAnswer::Refused(error) => return Err(*error),
            MetaAnswer::Task(job) if stateless => CallReply::Task(tasks::created(&self.gateway, job)),
            MetaAnswer::Task(job) => {
                CallReply::Verbatim(json!({ "task": tasks::started(&self.gateway, job) }).into())
            }
            MetaAnswer::Result(mut result) => {
                result.of_era(stateless);
                CallReply::Verbatim(result)
            }
        })
    }
}
