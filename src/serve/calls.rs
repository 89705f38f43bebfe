//! `tools/call`, on any transport.

use bytes::Bytes;
use nonet_core::run::ended_job;
use nonet_meta::MetaAnswer;
use nonet_state::session::Caller;
use nonet_text::results::CallResult;
use nonet_wire::Message;
use rmcp::{
    ErrorData,
    model::{CallToolRequestParams, CreateTaskResult, InputRequiredResult, RequestId},
};
use serde_json::{Value, json};

use super::{
    NonetServer,
    in_flight::{self, RequestOutcome},
    request::RequestContext,
    tasks,
};

/// The answer to a request: of a call, or any other as a result that is complete.
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
}

/// Returns the message that answers a request, in pieces, with `after` at its end.
pub(super) fn answer(id: &RequestId, answered: Result<CallReply, ErrorData>, after: &[u8]) -> Vec<Bytes> {
    let id_text = serde_json::to_string(id).unwrap_or_default();
    match answered {
        Ok(reply) => {
            let before = ["{\"jsonrpc\":\"2.0\",\"id\":", &id_text, ",\"result\":"].concat();
            reply.written(before.as_bytes(), &[b"}", after].concat())
        }
        Err(error) => {
            tracing::warn!(%id, ?error, "response error");
            let error = serde_json::to_vec(&error).unwrap_or_default();
            vec![Message::failure_of(&id_text, &error), Bytes::copy_from_slice(after)]
        }
    }
}

impl NonetServer {
    /// Calls a tool or a meta-tool.
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext,
    ) -> Result<CallReply, ErrorData> {
        let stateless = context.is_stateless();
        let level = self.log_level_for(context, stateless);
        let what = || in_flight::called(&request, stateless);
        let profile = self.session.profile.as_deref();
        let (state, given) = (request.request_state.as_deref(), request.input_responses.as_ref());
        let account = || self.who(context).account;
        let (open, at_once) = match self.parkings.calls.resume(what, profile, account, state, given) {
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
