//! The one road of every call: it is made ready, waits for its turn, is sent, and is recorded. A [`CallPlan`]
//! says how calls differ.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use nonet_api::notice::Notice;
use nonet_parts::{audit::AuditedCall, quotas::Admission, trace::Span};
use nonet_servers::{
    catalog::{MOST_COMPARED, Tool},
    downstream::{BESIDE, ProgressSink},
};
use nonet_state::{grants::RunApproval, questions::ApprovalRequest, session::Caller};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{CallResult, StructuredContent, json_start},
    template::{self, FilledTemplate},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{CallOutcome, PrepareError, PreparedCall, send::Sending};
use crate::{
    builtin::fetch_result,
    calls::Calls,
    gate::{Gate, with_the_near_call},
    graph::TemplateValues,
    interrupt::Interrupt,
    run::Run,
};

/// What distinguishes a call from others.
pub(crate) struct CallPlan<'a> {
    /// The call in flight, whose refusal is recorded; none inside an app, which records its own.
    pub begun: Option<&'a CallInFlight>,
    /// The tool, under any of its names.
    pub name: &'a str,
    /// The tool, if the caller has looked for it.
    pub found: Option<Result<(Gate, Arc<Tool>), Unready>>,
    pub params: CallParams<'a>,
    /// A jq filter for the result.
    pub select: Option<String>,
    pub asks: &'a WhoAsks<'a>,
}

/// Asks the user if the policy requires it; the call may keep its filter meanwhile. The call is tried again
/// once the user has agreed.
pub(crate) type WhoAsks<'a> =
    dyn Fn(ApprovalRequest, Option<String>) -> BoxFuture<'a, Result<(), Unready>> + Sync + 'a;

/// The params of a call.
pub(crate) enum CallParams<'a> {
    /// With references to kept results.
    Written(Value),
    /// Without references.
    Literal(&'a Value),
    /// With templates of a plan, and the values of these.
    Planned(&'a Value, &'a TemplateValues),
}

/// Why a call is not ready.
pub(crate) enum Unready {
    Fault(Box<Fault>),
    /// The question of the run around it waits for the user.
    Open(Box<RunApproval>),
}

impl Unready {
    /// Returns what the caller reads.
    pub(crate) fn fault(&self) -> Cow<'_, Fault> {
        match self {
            Self::Fault(fault) => Cow::Borrowed(fault),
            Self::Open(asked) => Cow::Owned(waits_for_user(asked)),
        }
    }
}

impl From<Unready> for Fault {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Fault(fault) => *fault,
            Unready::Open(asked) => waits_for_user(&asked),
        }
    }
}

impl From<Fault> for Unready {
    fn from(fault: Fault) -> Self {
        Self::Fault(Box::new(fault))
    }
}

/// A call in flight, until its log line is written and its span has ended.
#[derive(Debug)]
pub(crate) struct CallInFlight {
    pub at: Instant,
    /// The size of the params as JSON, in bytes.
    pub bytes_in: usize,
    /// The params as JSON for the page, if it keeps them.
    pub params: Bytes,
    pub span: Span,
    /// Its line in the audit log, written even if the call is dropped.
    pub audited: Mutex<Option<AuditedCall>>,
}

impl CallInFlight {
    /// Begins work that may become a call now. Work that certainly is a call begins with
    /// [`Observing::begin`].
    pub(crate) fn new(caller: &Caller, params: &Value) -> Self {
        Self::keeping(caller, params, 0)
    }

    /// Does the same, and keeps up to `most` bytes of the params.
    pub(crate) fn keeping(caller: &Caller, params: &Value, most: usize) -> Self {
        let (bytes_in, params) = json_start(params, most);
        let audited = Mutex::default();
        Self { at: Instant::now(), bytes_in, params: params.into(), span: caller.span(), audited }
    }
}

/// How a client waits for a call.
pub(crate) struct AnswerWait {
    /// The hard limit, if the client set one.
    pub timeout: Option<Duration>,
    /// Whether the call was launched in the background.
    pub background: bool,
    /// The call's places in the quotas; none for Nonet's own tools.
    pub admission: Option<Admission>,
    /// What runs, for people.
    pub label: Arc<str>,
    /// Whether the server's result stays unchanged.
    pub is_verbatim: bool,
}

/// A call that has ended and is recorded.
pub(crate) struct RecordedCall {
    pub tool: Arc<Tool>,
    pub made: CallOutcome,
    /// The size of the result, in bytes.
    pub bytes_out: usize,
    /// Repairs made to its params.
    pub repaired: Vec<String>,
    /// The filter that is left for the result.
    pub select: Option<String>,
    /// Whether the filter has been applied where a kept result was read.
    pub is_filtered: bool,
    /// The headers of a response and its next page.
    pub beside: Option<Value>,
}

impl Calls {
    /// Makes a call, and returns its whole result. `turn` waits until the call may be sent, and returns what
    /// the call occupies until it has ended, its limit, and what cancels it.
    pub(crate) async fn run<P>(
        self: &Arc<Self>,
        caller: &Caller,
        begun: &CallInFlight,
        plan: &mut CallPlan<'_>,
        turn: impl AsyncFnOnce(&PreparedCall) -> Result<(P, Option<Duration>, CancellationToken), Fault>,
    ) -> Result<RecordedCall, Unready> {
        let name = plan.name;
        let prepared = self.ready(caller, plan).await?;
        let (_place, timeout, cancel) = match turn(&prepared).await {
            Ok(turn) => turn,
            Err(fault) => {
                self.observing.refused(caller, name, begun, &fault).await;
                return Err(fault.into());
            }
        };
        let progress = ProgressSink::new(None);
        let sending = Sending { timeout, cancel, progress, is_verbatim: true };
        Ok(self.send(caller, prepared, begun, sending).await)
    }

    /// Makes a ready call whose client waits until the soft deadline: then the call continues as a job.
    /// `answer` turns the ended call into the client's answer.
    pub(crate) fn run_for_client<'a, F: Future<Output = CallResult> + Send>(
        self: &'a Arc<Self>,
        caller: &'a Caller,
        begun: CallInFlight,
        prepared: PreparedCall,
        wait: AnswerWait,
        answer: impl FnOnce(Arc<Self>, Caller, RecordedCall, Arc<AtomicBool>) -> F + Send + 'static,
    ) -> impl Future<Output = Result<CallResult, Interrupt>> + Send + 'a {
        let AnswerWait { timeout, background, admission, label, is_verbatim } = wait;
        let is_admitted = caller.is_admitted || admission.is_some();
        let (run, progress) = Run::of_caller(label, caller);
        let run = Run { began: begun.at.into(), background, admission: admission.unwrap_or_default(), ..run };
        // The request's token ends with its answer, which may be a handle; background work uses the job's
        // token.
        let own = Caller { cancel: run.cancel.clone(), is_admitted, ..caller.clone() };
        let sending = Sending { timeout, cancel: run.cancel.clone(), progress, is_verbatim };
        let (calls, went_on) = (self.clone(), run.went_on.clone());
        let work = async move {
            let ended = calls.send(&own, prepared, &begun, sending).await;
            answer(calls, own, ended, went_on).await
        };
        // The future of an async function would hold all arguments beside this one.
        run.wait(&self.keeping.jobs, caller, work.boxed())
    }

    /// Makes a call ready: resolves its name, fills and reads its params, and asks. Records a refusal.
    pub(crate) async fn ready(
        &self,
        caller: &Caller,
        plan: &mut CallPlan<'_>,
    ) -> Result<PreparedCall, Unready> {
        let unready = match self.approved(caller, plan).await {
            Ok(prepared) => return Ok(prepared),
            Err(unready) => unready,
        };
        if let Some(begun) = plan.begun {
            self.observing.refused(caller, plan.name, begun, &unready.fault()).await;
        }
        Err(unready)
    }

    async fn approved(&self, caller: &Caller, plan: &mut CallPlan<'_>) -> Result<PreparedCall, Unready> {
        loop {
            let (found, written, filled) = self.resolved(caller, plan).await?;
            match self.prepare_tool(caller, found, written, filled).await {
                Ok(mut prepared) => {
                    prepared.has_page = fetch_result::narrow(&mut prepared, &mut plan.select);
                    prepared.select = plan.select.take();
                    if let (CallParams::Planned(json, _), Some(begun)) = (&plan.params, plan.begun)
                        && !template::names(json).is_empty()
                    {
                        self.observing.audit_params(begun, &prepared.params);
                    }
                    return Ok(prepared);
                }
                Err(PrepareError::Fault(fault)) => return Err(Unready::Fault(fault)),
                Err(PrepareError::Asks(asked)) => (plan.asks)(*asked, plan.select.clone()).await?,
            }
        }
    }

    /// Returns the tool of a call, and its params as the user reads them and as they are filled.
    async fn resolved(
        &self,
        caller: &Caller,
        plan: &mut CallPlan<'_>,
    ) -> Result<((Gate, Arc<Tool>), Value, Option<FilledTemplate>), Unready> {
        let found = plan.found.take().transpose()?;
        let (written, filled) = match &mut plan.params {
            CallParams::Written(written) => {
                let filled = self.keeping.kept.fill(&caller.owner(), written).await?;
                (written.take(), filled)
            }
            CallParams::Literal(written) => (written.clone(), None),
            CallParams::Planned(json, values) => {
                let filled = self.filled(caller, json, values).await?;
                // A template has no meaning outside its plan; a kept result stays a reference.
                let is_portable = template::names(json).is_empty();
                (if is_portable { json.clone() } else { filled.value.clone() }, Some(filled))
            }
        };
        let found = match found {
            Some(found) => found,
            None => self.find_tool(caller, plan.name).await.map_err(|fault| {
                with_the_near_call(&Gate::of(&self.publisher, &caller.session), fault, &written)
            })?,
        };
        Ok((found, written, filled))
    }

    /// Sends a call that is ready, and records its end.
    async fn send(
        self: &Arc<Self>,
        caller: &Caller,
        mut prepared: PreparedCall,
        begun: &CallInFlight,
        sending: Sending,
    ) -> RecordedCall {
        let (tool, is_filtered) = (prepared.tool.clone(), prepared.has_page);
        let (repaired, select) = (std::mem::take(&mut prepared.repaired), prepared.select.take());
        let is_verbatim = sending.is_verbatim;
        let mut made = self.invoke(caller, prepared, sending, &begun.span).await;
        let result = made.result.as_tree_mut().filter(|_| !is_verbatim);
        let beside = result.and_then(|result| take_beside(&tool, result));
        if made.outcome == "ok" {
            compare_output(caller, &tool, &made.result);
        }
        let bytes_out = made.result.size().await;
        self.observing.record(caller, &tool, begun, bytes_out, &mut made).await;
        if is_filtered {
            made.result = fetch_result::output_of(made.result);
        }
        RecordedCall { tool, made, bytes_out, repaired, select, is_filtered, beside }
    }
}

/// Builds the fault for a call whose run waits for the user.
pub(crate) fn waits_for_user(asked: &RunApproval) -> Fault {
    let message = format!("`{}` waits for the user ({}).", asked.tool, asked.rule);
    Fault::new(FaultCode::NeedsApproval, message)
}

/// Tells the session, once, that a tool's answers do not have the form that the tool declares (2025-11-25,
/// server/tools: output schema).
fn compare_output(caller: &Caller, tool: &Tool, result: &CallResult) {
    let Some(schema) = tool.output().filter(|_| !caller.session.knows_of_output(&tool.full)) else { return };
    let differs = match result.structured(MOST_COMPARED) {
        StructuredContent::Value(value) => {
            schema.first_fault(&value).map(|fault| format!("structuredContent{fault}"))
        }
        StructuredContent::Absent => Some("it has no structuredContent".into()),
        StructuredContent::Unread => None,
    };
    if let Some(differs) = differs {
        caller.session.tell_of_output(&tool.full);
        let message = format!(
            "The answer was passed on, but it does not fit the `outputSchema` of `{}`: {differs}. Read it for what it is.",
            tool.full
        );
        caller.session.notify(Notice::OutputMismatch { tool: tool.full.to_string(), message });
    }
}

/// Moves headers and the next page's address from the `_meta` of a result into a value beside the result.
fn take_beside(tool: &Tool, result: &mut Value) -> Option<Value> {
    let meta = result.get_mut("_meta")?.as_object_mut()?;
    let beside = meta.shift_remove(BESIDE)?;
    if meta.is_empty()
        && let Some(members) = result.as_object_mut()
    {
        members.shift_remove("_meta");
    }
    let extras = serde_json::from_value(beside);
    let extras =
        extras.inspect_err(|error| tracing::warn!(%error, "a notice about an answer was lost")).ok()?;
    Some(Notice::Response { tool: tool.full.to_string(), extras }.into())
}
