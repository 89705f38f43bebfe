//! One call of a plan: fills its templates, waits for its server, makes the call.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::sync::MutexGuard;
use tokio_util::sync::CancellationToken;

use super::goes_alone;
use crate::{
    catalog::Tool,
    clock::millis,
    downstream::{Connection, ProgressSink},
    fault::{Code, Fault},
    gateway::{
        Gateway,
        call::{Begun, Prepared},
        interrupt::Interrupt,
        session::Caller,
    },
    jobs,
    results::{is_error, json_len},
    template::{self, Named, Source},
    workflow::PlannedCall,
};

/// How one call of a plan ended.
#[derive(Clone, Debug)]
pub(crate) struct ActionResult {
    /// The tool's full name, or the name as it was given.
    pub name: String,
    /// A `CallToolResult`.
    pub result: Arc<Value>,
    /// What was repaired in its params.
    pub repaired: Vec<String>,
    /// Whether the tool was called.
    pub ran: bool,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
}

impl ActionResult {
    /// A call that did not reach its tool.
    pub fn not_run(call: &PlannedCall, fault: &Fault, took: Duration) -> Self {
        let result = Arc::new(fault.to_result());
        let elapsed_ms = millis(took);
        Self { name: call.name.clone(), result, repaired: Vec::new(), ran: false, elapsed_ms }
    }

    pub fn panicked(call: &PlannedCall) -> Self {
        tracing::error!(tool = call.name, "a call panicked");
        let result = Arc::new(jobs::panicked());
        Self { name: call.name.clone(), result, repaired: Vec::new(), ran: true, elapsed_ms: 0 }
    }

    /// Whether its result is not an error.
    pub fn succeeded(&self) -> bool {
        !is_error(&self.result)
    }
}

impl Gateway {
    /// Makes one call of a plan. `halt` ends only its wait for the server.
    pub(super) async fn run_action(
        self: &Arc<Self>,
        caller: &Caller,
        call: &PlannedCall,
        values: BTreeMap<String, Arc<Source>>,
        cancel: CancellationToken,
        halt: &CancellationToken,
    ) -> ActionResult {
        let begun = Begun::new(caller, &call.params);
        match self.try_action(caller, call, &values, &begun, cancel, halt).await {
            Ok(ended) => ended,
            Err(fault) => {
                self.refused(caller, &call.name, &begun, &fault);
                ActionResult::not_run(call, &fault, begun.at.elapsed())
            }
        }
    }

    async fn try_action(
        self: &Arc<Self>,
        caller: &Caller,
        call: &PlannedCall,
        values: &BTreeMap<String, Arc<Source>>,
        begun: &Begun,
        cancel: CancellationToken,
        halt: &CancellationToken,
    ) -> Result<ActionResult, Fault> {
        let prepared = self.prepare_action(caller, call, values).await?;
        let (tool, repaired) = (prepared.tool.clone(), prepared.repaired.clone());
        let mut timeout = call.timeout_ms.map(|ms| Duration::from_millis(ms.max(1)));
        let connection = match goes_alone(&tool) {
            true => self.servers.connection_for(&prepared.gate, caller, &tool.server),
            false => None,
        };
        let _turn = match &connection {
            Some(connection) => Some(turn(connection, &tool, timeout, &cancel, halt).await?),
            None => None,
        };
        timeout = timeout.map(|limit| limit.saturating_sub(begun.at.elapsed()).max(Duration::from_millis(1)));
        let sink = ProgressSink::new(None);
        let made = self.invoke(caller, prepared, timeout, cancel, sink, &begun.span).await;
        let size = json_len(&made.result);
        self.record(caller, &tool, begun, size, &made);
        let (result, _) = self.filtered(caller, made.result, size, call.select.as_deref()).await;
        let (result, elapsed_ms) = (Arc::new(result), millis(begun.at.elapsed()));
        Ok(ActionResult { name: tool.full.to_string(), result, repaired, ran: true, elapsed_ms })
    }

    async fn prepare_action(
        &self,
        caller: &Caller,
        call: &PlannedCall,
        values: &BTreeMap<String, Arc<Source>>,
    ) -> Result<Prepared, Fault> {
        let references = self.kept.references(&caller.owner(), &call.params).await?;
        let lookup = |name: &str| match values.get(name) {
            Some(value) => Named::Value(value.clone()),
            None if name.starts_with("ref:") => references.named(name),
            None => unknown(values),
        };
        let filled = template::fill(&call.params, &lookup);
        let params = filled.map_err(|error| Fault::new(Code::InvalidParams, format!("{error}.")))?;
        // A template means nothing outside of its plan; a kept result stays a reference.
        let portable = template::names(&call.params).is_empty();
        let written = if portable { call.params.clone() } else { params.value.clone() };
        match self.prepare(caller, &call.name, written, Some(params)).await {
            Ok(prepared) => Ok(prepared),
            Err(Interrupt::Fault(fault)) => Err(*fault),
            // A call that is only prepared neither goes on as a task nor is refused by its server.
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
                Err(Fault::new(Code::Internal, "The call was not made; make it with execute_tool."))
            }
        }
    }
}

/// A template that names none of these values.
pub(crate) fn unknown(values: &BTreeMap<String, Arc<Source>>) -> Named {
    Named::Unknown(values.keys().cloned().collect::<Vec<_>>().join(", "))
}

/// Waits until no other plan has a call in flight on a connection that takes one at a time.
async fn turn<'a>(
    connection: &'a Connection,
    tool: &Tool,
    timeout: Option<Duration>,
    cancel: &CancellationToken,
    halt: &CancellationToken,
) -> Result<MutexGuard<'a, ()>, Fault> {
    let not_run =
        |why: &str| Fault::new(Code::Cancelled, format!("Not run: {why} while it waited for its turn."));
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(not_run("cancelled")),
        () = halt.cancelled() => Err(not_run("another call failed and `fail_fast` is set,")),
        () = tokio::time::sleep(timeout.unwrap_or(connection.settings().timeout)) => {
            let message = format!("`{}` was busy with other calls for all of its time.", tool.server);
            Err(Fault::new(Code::RateLimited, message).retry_after(Duration::from_secs(1)))
        }
        turn = connection.one_at_a_time.lock() => Ok(turn),
    }
}
