//! `tools/call`, on any transport.

use nonet_core::run::ended_job;
use nonet_meta::MetaAnswer;
use nonet_peer::{
    reply::Reply,
    request::{RequestContext, TaskWish},
};
use nonet_state::session::Caller;
use rmcp::{ErrorData, model::CallToolRequestParams};
use serde_json::json;

use super::{
    NonetServer,
    in_flight::{self, RequestOutcome},
    tasks,
};

/// A call whose client wants a task.
pub(super) struct CallAsTask {
    pub caller: Caller,
    pub tool: String,
}

impl NonetServer {
    /// Calls a tool or a meta-tool.
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        wish: TaskWish,
        context: &RequestContext,
    ) -> Result<Reply, ErrorData> {
        let stateless = context.is_stateless();
        let level = self.log_level_for(context, stateless);
        let what = || in_flight::called(&request, stateless);
        let (state, given) = (request.request_state.as_deref(), request.input_responses.as_ref());
        let owner = || self.who(context).owner();
        let (open, at_once) = match self.parking().resume(what, owner, state, given) {
            Some(open) => (open?, None),
            None => self.open_call(request, wish, context, level),
        };
        let answer = match open.run(&self.parking(), context, level).await {
            RequestOutcome::Ended(answer) => answer,
            RequestOutcome::Asks(asked) => return Ok(Reply::Asks(asked)),
        };
        let answer = match (answer, at_once) {
            // A client that wants a task gets one, even if the call has already ended.
            (MetaAnswer::Result(result), Some(task)) => MetaAnswer::Task(
                ended_job(&self.gateway.keeping.jobs, &task.caller, &task.tool, result).await,
            ),
            (answer, _) => answer,
        };
        Ok(match answer {
            MetaAnswer::Refused(error) => return Err(*error),
            MetaAnswer::Task(job) if stateless => Reply::Task(tasks::created(&self.gateway, job)),
            MetaAnswer::Task(job) => {
                Reply::Verbatim(json!({ "task": tasks::started(&self.gateway, job) }).into())
            }
            MetaAnswer::Result(mut result) => {
                result.of_era(stateless);
                Reply::Verbatim(result)
            }
        })
    }
}
