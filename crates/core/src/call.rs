//! A client's call of a tool: its plan, and its answer. The road of every call is `road`; `prepare` and
//! `send` are its parts.

mod prepare;
mod road;
mod send;

use std::{
    future::ready,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::FutureExt;
use nonet_api::notice::Notice;
use nonet_config::select::{self, SelectError};
use nonet_parts::quotas::Admission;
use nonet_servers::{
    catalog::{EntryKind, GATEWAY, Tool},
    downstream::DeclinedRequest,
};
use nonet_text::{
    fault::{Fault, FaultCode, NextStep},
    name::meta_tool,
    results::{CallResult, is_question, json_len},
};
use serde::Serialize;
use serde_json::{Value, json};

pub use nonet_state::questions::CallRequest;

pub(crate) use self::{
    prepare::{PrepareError, PreparedCall, in_text, needs_user, still_the_same, unknown},
    road::{AnswerWait, CallInFlight, CallParams, CallPlan, RecordedCall, Unready, waits_for_user},
    send::CallOutcome,
};
use super::{AppArguments, apps::AnswerMode, interrupt::Interrupt, run::handed_out};
use crate::{
    builtin,
    calls::Calls,
    gate::{Gate, with_the_near_call},
};
use nonet_state::{
    faults::wrong_filter,
    mailbox::clean_all,
    questions::{ApprovalRequest, HeldCall},
    session::Caller,
};

/// Nonet's own tools whose results are a server's.
const PASSED_ON: [&str; 2] = ["background_run", "read_resource"];

/// The name under which calls of all sessions' own servers are counted.
pub(super) static OF_SESSIONS: LazyLock<Arc<str>> = LazyLock::new(|| "(of sessions)".into());

impl Calls {
    /// Makes a call. Returns the server's `CallToolResult`, or the handle of a call that continues in the
    /// background.
    pub async fn execute(
        self: &Arc<Self>,
        caller: &Caller,
        mut request: CallRequest,
    ) -> Result<CallResult, Interrupt> {
        let begun = self.observing.begin(caller, &request.name, &request.params);
        request.select = select::given(request.select);
        let found = match self.checked_filter(request.select.as_deref()).await {
            Ok(()) => match self.ui_tool(caller, &request) {
                Some(found) => found,
                None => self.find_tool(caller, &request.name).await,
            },
            Err(fault) => Err(fault),
        };
        if let Ok((_, tool)) = &found
            && tool.kind == EntryKind::App
        {
            // The app writes its own line.
            if let Some(call) = begun.audited.lock().take() {
                call.forget();
            }
            // Boxed, as other rare ways are: the future of every call is as large as its largest part.
            return Box::pin(self.execute_app(caller, tool, request)).await.map(CallResult::from);
        }
        let CallRequest { timeout, background, verbatim, of_ui, .. } = request;
        let found = found.map_err(|fault| {
            let fault = with_the_call_meant(fault, &request.name, &request.params);
            with_the_near_call(&Gate::of(&self.publisher, &caller.session), fault, &request.params)
        });
        let mut admission = None;
        // Checked before an approval or a rate is used up. There is always room for Nonet's own tools, which
        // look after tasks and questions.
        let found = found.and_then(|found| {
            if &*found.1.server != GATEWAY {
                admission = Some(self.admit(caller, background)?);
            }
            Ok(found)
        });
        let is_code = found.as_ref().is_ok_and(|(_, tool)| builtin::takes_code(tool));
        let asks = |asked: ApprovalRequest, select| {
            let (name, params) = (asked.approval.tool().into(), asked.written.clone());
            let held = CallRequest { name, params, timeout, background, select, verbatim, of_ui };
            let held = HeldCall::Tool(Box::new(held));
            ready(Err(self.asking.questions.hold(caller, asked, held).into())).boxed()
        };
        let prepared = {
            let mut plan = CallPlan {
                begun: Some(&begun),
                name: &request.name,
                found: Some(found.map_err(Unready::from)),
                // No kept result becomes a part of a program.
                params: match is_code {
                    true => CallParams::Literal(&request.params),
                    false => CallParams::Written(request.params),
                },
                select: request.select,
                asks: &asks,
            };
            self.ready(caller, &mut plan).await.map_err(Fault::from)?
        };
        let label = prepared.tool.full.clone();
        let wait = AnswerWait { timeout, background, admission, label, is_verbatim: verbatim };
        // Only a verbatim answer may be the server's own error.
        let refused = verbatim.then(|| Arc::new(OnceLock::new()));
        let refusal = refused.clone();
        let answer =
            async move |calls: Arc<Self>, own: Caller, mut ended: RecordedCall, went_on: Arc<AtomicBool>| {
                if let (Some(error), Some(refusal)) = (ended.made.refusal.take(), refusal) {
                    let _ = refusal.set(error);
                }
                calls.answer(&own, ended, verbatim, &went_on).await
            };
        let result = self.run_for_client(caller, begun, prepared, wait, answer).await?;
        match refused.as_ref().and_then(|refused| refused.get()) {
            Some(error) => Err(Interrupt::Refused(error.clone())),
            None => Ok(result),
        }
    }

    /// Returns the tool that a user interface means, if the call may come from one.
    fn ui_tool(&self, caller: &Caller, request: &CallRequest) -> Option<Result<(Gate, Arc<Tool>), Fault>> {
        if !request.of_ui {
            return None;
        }
        let gate = Gate::of(&self.publisher, &caller.session);
        let found = gate.ui_tool(&request.name)?;
        Some(found.map(|tool| (gate, tool)))
    }

    /// Turns a call that has ended into the answer of its client: filtered, within the budget, with notices.
    async fn answer(
        &self,
        own: &Caller,
        ended: RecordedCall,
        verbatim: bool,
        went_on: &AtomicBool,
    ) -> CallResult {
        let RecordedCall { tool, made, bytes_out, repaired, select, beside, .. } = ended;
        let called = made.fault.is_none().then_some(&tool).and_then(|tool| tool.called());
        let mut notes: Vec<Value> = repair_note(&tool, &repaired).into_iter().chain(beside).collect();
        let (result, size, note) = self.filtered(own, made.result, bytes_out, select.as_deref()).await;
        notes.extend(
            note.map(|message| {
                Value::from(Notice::SelectNote { tool: Some(tool.full.to_string()), message })
            }),
        );
        let mut spared = bytes_out.saturating_sub(size);
        notes.extend(declined_note(own, &tool));
        // A job keeps its whole result and shortens it on delivery.
        if went_on.load(Ordering::Acquire) {
            for note in notes {
                own.session.notify(note);
            }
            return result;
        }
        let (owner, budget) = (own.owner(), own.limits.max_result_bytes);
        let mut result = match &*tool.server == GATEWAY && !PASSED_ON.contains(&&*tool.name) {
            true => self.keeping.kept.fit_own(&owner, result, budget).await,
            false => self.keeping.kept.fit(&owner, result, size, budget).await,
        };
        if size > budget {
            spared += size.saturating_sub(result.size().await);
        }
        self.observing.metrics.spared_of_result(spared);
        if verbatim {
            // Delivered with the next answer of a meta-tool.
            notes.into_iter().for_each(|note| own.session.notify(note));
            return result;
        }
        called.into_iter().for_each(|called| result.add_meta(called));
        notes.iter_mut().for_each(clean_all);
        if !notes.is_empty() {
            result.push_notices(&notes);
        }
        result
    }

    /// Returns the answer of an app, filtered and within the budget.
    pub(crate) async fn hand_out(
        &self,
        caller: &Caller,
        answer: Value,
        select: Option<&str>,
        went_on: &AtomicBool,
    ) -> CallResult {
        let size = json_len(&answer);
        let (answer, _, note) = self.filtered(caller, answer.into(), size, select).await;
        if let Some(message) = note {
            caller.session.notify(Notice::SelectNote { tool: None, message });
        }
        handed_out(&self.keeping.kept, caller, answer, went_on).await
    }

    /// Reserves a place in the quotas for new work, before any of the work is done.
    pub(super) fn admit(&self, caller: &Caller, launch: bool) -> Result<Admission, Fault> {
        if !caller.is_admitted {
            self.keeping.jobs.has_room()?;
        }
        Ok(caller.admit(launch)?)
    }

    /// Runs an app that was called like a tool, in the same way as `call_app` does.
    async fn execute_app(
        self: &Arc<Self>,
        caller: &Caller,
        tool: &Tool,
        request: CallRequest,
    ) -> Result<Value, Interrupt> {
        let CallRequest { params, timeout, background, select, .. } = request;
        let arguments = match params {
            Value::Object(params) => tool.app_input(params),
            input => input,
        };
        let arguments = AppArguments::new(tool.name.to_string(), arguments);
        self.gateway()?
            .apps
            .call_app(caller, arguments.handed_out(AnswerMode { background, select }, timeout))
            .await
    }

    /// Refuses a filter that cannot be used, before anything is called.
    async fn checked_filter(&self, filter: Option<&str>) -> Result<(), Fault> {
        let Some(filter) = filter else { return Ok(()) };
        let checked = Box::pin(select::check_all(vec![filter.into()])).await;
        checked.map_err(|(_, error)| wrong_filter("`select`", &error))
    }

    /// Applies a filter, if any, to a result of `size` bytes that is neither an error nor a question. Returns
    /// the result with its new size, and why the filter probably does not find what it is for.
    pub(super) async fn filtered(
        &self,
        caller: &Caller,
        result: CallResult,
        size: usize,
        filter: Option<&str>,
    ) -> (CallResult, usize, Option<String>) {
        let is_filtered = !result.is_error() && !result.as_tree().is_some_and(is_question);
        let Some(filter) = filter.filter(|_| is_filtered) else { return (result, size, None) };
        let owner = caller.owner();
        let mut note = None;
        let filtered = match Box::pin(self.keeping.kept.select(&owner, filter, result.value())).await {
            Ok(selected) => {
                note = selected.note.map(|note| format!("`select`: {note}"));
                text_result(match selected.value {
                    Value::String(text) => text,
                    value => value.to_string(),
                })
            }
            // The call was made, so a bad filter must not lose its result.
            Err(error) => match self.keeping.kept.keep(&owner, Arc::new(result.into_tree().await)).await {
                Ok(kept) => {
                    let message = format!("The call succeeded, but {error}. Its result is kept as {kept}.");
                    let mut again = json!({ "ref": kept.reference });
                    if matches!(error, SelectError::Busy(_)) {
                        again["select"] = json!(filter);
                    }
                    Fault::new(FaultCode::InvalidParams, message).then(NextStep::own("fetch_result", again))
                }
                Err(why) => Fault::new(
                    FaultCode::InvalidParams,
                    format!("The call succeeded, but {error}, and its result was not kept: {why}."),
                ),
            }
            .to_result(),
        };
        let size = json_len(&filtered);
        (filtered.into(), size, note)
    }
}

/// Builds a `CallToolResult` with one text block.
pub fn text_result(text: String) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// Builds a `CallToolResult` with an answer as its text.
pub fn answer_of(answer: &impl Serialize) -> Value {
    text_result(json!(answer).to_string())
}

/// Adds the intended call to the fault of a meta-tool that was called through `execute_tool`.
fn with_the_call_meant(fault: Fault, name: &str, params: &Value) -> Fault {
    match meta_tool(name) {
        Some(meta_tool) if fault.code == FaultCode::InvalidParams => {
            let arguments = if params.is_object() { params.clone() } else { json!({}) };
            fault.next(meta_tool, arguments)
        }
        _ => fault,
    }
}

/// Reports server requests that were declined. Missing roots are not reported: servers ask for roots
/// speculatively.
fn declined_note(caller: &Caller, tool: &Tool) -> Option<Value> {
    let mut declined = caller.asker.as_ref()?.waits.take_declined();
    declined.retain(|DeclinedRequest { method, .. }| {
        let of_interest = *method != "roots/list";
        if !of_interest {
            tracing::info!(tool = %tool.full, %method, "the server asked for this, and the client could not answer it");
        }
        of_interest
    });
    if declined.is_empty() {
        return None;
    }
    let why = declined.iter().find_map(|one| one.why.as_ref());
    let message = match why {
        Some(why) => format!("`{}` asked for this during the call, and Nonet declined: {why}.", tool.server),
        None => "The server asked for this during the call, and the client could not answer it.".into(),
    };
    let methods = declined.iter().map(|one| one.method.clone()).collect();
    Some(Notice::RequestDeclined { tool: tool.full.to_string(), methods, message }.into())
}

fn repair_note(tool: &Tool, repaired: &[String]) -> Option<Value> {
    let notice = || Notice::ParamsRepaired { tool: tool.full.to_string(), changes: repaired.to_vec() };
    (!repaired.is_empty()).then(|| notice().into())
}
