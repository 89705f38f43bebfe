//! The one road of every call: resolve the name, check the rules, fill references, read the params, ask the user if a
//! rule requires it, call the server, count, fit the result.

use std::{
    sync::{Arc, LazyLock, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::FutureExt;
use nonet_base::text::clip;
use nonet_config::{
    ApproveBy,
    select::{self, SelectError},
};
use nonet_parts::{
    audit::{Approver, AuditedCall},
    figures::CallFailure,
    jobs::JobProgress,
    quotas::Admission,
    trace::Span,
};
use nonet_schema::Schema;
use nonet_servers::{
    catalog::{EntryKind, GATEWAY, SKILLS, Tool},
    downstream::{BESIDE, CallControl, CallError, DeclinedRequest, ProgressSink},
    policy::PolicyVerdict,
};
use nonet_text::{
    fault::{Fault, FaultCode, NextStep},
    name::{fold, meta_tool, split_given, without_client_prefix},
    results::{CallResult, is_question, json_len, json_start},
    template::FilledTemplate,
};
use parking_lot::Mutex;
use rmcp::model::ErrorData;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    AppArguments, Gateway,
    apps::AnswerMode,
    builtin::{self, fetch_result},
    inspect::ContentInTransit,
    interrupt::Interrupt,
    questions::{ApprovalRequest, HeldCall},
    run::Run,
};
use crate::gate::{Gate, always_asks, with_the_near_call};
use nonet_state::{
    faults::{call_fault, invalid_params, passed_on, wrong_filter},
    grants::RequiredApproval,
    mailbox::clean_all,
    servers::settled,
    session::{Caller, Session},
};

/// How long a call waits for a server that is starting or reconnecting.
const READY_WAIT: Duration = Duration::from_secs(20);
/// How long a call with an unknown name waits while servers start for the first time.
const LIST_WAIT: Duration = Duration::from_secs(3);

/// Nonet's own tools whose results are a server's.
const PASSED_ON: [&str; 2] = ["background_run", "read_resource"];

/// The name under which calls of all sessions' own servers are counted.
pub(super) static OF_SESSIONS: LazyLock<Arc<str>> = LazyLock::new(|| "(of sessions)".into());

/// A call as requested.
#[derive(Clone, Debug, Default)]
pub struct CallRequest {
    /// The tool, under any of its names.
    pub name: String,
    /// The params as received.
    pub params: Value,
    /// The hard limit, if the caller set one.
    pub timeout: Option<Duration>,
    /// Whether to run the call in the background from the start.
    pub background: bool,
    /// A jq filter for the result.
    pub select: Option<String>,
    /// Whether to return the server's result unchanged.
    pub verbatim: bool,
}

/// A call ready to be made: known tool, allowed, valid params.
pub(super) struct PreparedCall {
    pub gate: Gate,
    pub tool: Arc<Tool>,
    pub params: Map<String, Value>,
    /// Repairs made to the params, and params unknown to the tool.
    pub repaired: Vec<String>,
    /// Who approved the call, if approval was required.
    pub approver: Option<Approver>,
    /// Whether the rates have counted the call.
    pub is_rated: bool,
}

/// A call in flight, until its log line is written and its span has ended.
#[derive(Debug)]
pub(super) struct CallInFlight {
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
    /// Begins work that may become a call now. Work that certainly is a call begins with [`Gateway::begin`].
    pub(super) fn new(caller: &Caller, params: &Value) -> Self {
        Self::keeping(caller, params, 0)
    }

    /// Does the same, and keeps up to `most` bytes of the params.
    pub(super) fn keeping(caller: &Caller, params: &Value, most: usize) -> Self {
        let (bytes_in, params) = json_start(params, most);
        let audited = Mutex::default();
        Self { at: Instant::now(), bytes_in, params: params.into(), span: caller.span(), audited }
    }
}

#[derive(Debug)]
pub(super) struct CallOutcome {
    /// Always a `CallToolResult`.
    pub result: CallResult,
    /// `ok`, `tool_error`, or a fault code.
    pub outcome: &'static str,
    /// Time spent in the server.
    pub in_server: Duration,
    /// Whether the outcome counts for the tool's figures: the call reached its server and was not cancelled.
    pub counts: bool,
    /// The message of the fault, if there is one.
    pub fault: Option<String>,
    /// The server's own error, if it refused the call.
    pub refusal: Option<Box<ErrorData>>,
    /// Who approved the call, if approval was required.
    pub approver: Option<Approver>,
}

impl CallOutcome {
    /// Returns how the call failed, if it did.
    pub(super) fn error(&self) -> Option<CallFailure<'_>> {
        let message = match &self.fault {
            Some(message) => message,
            None if self.outcome == "ok" => return None,
            None => self.result.as_tree().map_or("", first_text),
        };
        let has_words = |line: &&str| line.contains(char::is_alphanumeric);
        let message = message.lines().map(str::trim).find(has_words).unwrap_or_default();
        Some(CallFailure { code: self.outcome, message })
    }
}

/// Why a call has no result.
struct FailedCall {
    fault: Fault,
    /// Whether the call reached its server and was not cancelled.
    reached: bool,
}

/// Why a call was not prepared.
#[derive(Debug)]
pub(super) enum PrepareError {
    Fault(Box<Fault>),
    /// The user has to agree first.
    Asks(Box<ApprovalRequest>),
}

impl From<Fault> for PrepareError {
    fn from(fault: Fault) -> Self {
        Self::Fault(Box::new(fault))
    }
}

impl FailedCall {
    fn unreached(fault: Fault) -> Self {
        Self { fault, reached: false }
    }
}

impl Gateway {
    /// Makes a call. Returns the server's `CallToolResult`, or the handle of a call that continues in the
    /// background.
    pub async fn execute(
        self: &Arc<Self>,
        caller: &Caller,
        mut request: CallRequest,
    ) -> Result<CallResult, Interrupt> {
        let begun = self.begin(caller, &request.name, &request.params);
        request.select = select::given(request.select);
        let found = match self.checked_filter(request.select.as_deref()).await {
            Ok(()) => self.find_tool(caller, &request.name).await,
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
        let prepared = async {
            let found = found.map_err(|fault| {
                let fault = with_the_call_meant(fault, &request.name, &request.params);
                with_the_near_call(&self.gate(&caller.session), fault, &request.params)
            })?;
            // Checked before an approval or a rate is used up. There is always room for Nonet's own tools, which look
            // after tasks and questions.
            let admission = match &*found.1.server == GATEWAY {
                true => Admission::default(),
                false => self.admit(caller, request.background)?,
            };
            let filled = self.kept.fill(&caller.owner(), &request.params).await?;
            let mut prepared = self.prepare_tool(caller, found, request.params, filled).await?;
            let is_page = fetch_result::narrow(&mut prepared, &mut request.select);
            Ok::<_, PrepareError>((prepared, admission, is_page))
        };
        let (prepared, admission, is_page) = match prepared.await {
            Ok(ready) => ready,
            Err(unprepared) => {
                let fault = match unprepared {
                    PrepareError::Fault(fault) => *fault,
                    PrepareError::Asks(unasked) => {
                        let held = CallRequest {
                            name: unasked.approval.tool().into(),
                            params: unasked.written.clone(),
                            timeout: request.timeout,
                            background: request.background,
                            select: request.select.clone(),
                            verbatim: request.verbatim,
                        };
                        self.questions.hold(caller, *unasked, HeldCall::Tool(Box::new(held)))
                    }
                };
                self.refused(caller, &request.name, &begun, &fault).await;
                return Err(fault.into());
            }
        };
        let mut notes: Vec<Value> = repair_note(&prepared).into_iter().collect();
        let tool = prepared.tool.clone();
        let label = tool.full.clone();
        let cancel = CancellationToken::new();
        let sink = ProgressSink::new(caller.progress.clone());
        let last = sink.clone();
        let progress: JobProgress = Arc::new(move || last.last());
        let is_own = &*tool.server == GATEWAY;
        // The request's token ends with its answer, which may be a handle; background work uses the job's
        // token.
        let is_admitted = caller.is_admitted || !is_own;
        let own = Caller { cancel: cancel.clone(), is_admitted, ..caller.clone() };
        let (gateway, token) = (self.clone(), cancel.clone());
        let (timeout, select) = (request.timeout, request.select);
        let run = Run {
            began: begun.at.into(),
            background: request.background,
            admission,
            ..Run::new(label, cancel, progress)
        };
        let went_on = run.went_on.clone();
        // Only a verbatim answer may be the server's own error.
        let refused = request.verbatim.then(|| Arc::new(OnceLock::new()));
        let refusal = refused.clone();
        let work = async move {
            let mut made = gateway.invoke(&own, prepared, timeout, token, sink, &begun.span).await;
            if let Some(result) = made.result.as_tree_mut().filter(|_| !request.verbatim) {
                notes.extend(beside(&tool, result));
            }
            let bytes_out = made.result.size().await;
            gateway.record(&own, &tool, &begun, bytes_out, &mut made).await;
            if let (Some(error), Some(refusal)) = (made.refusal, refusal) {
                let _ = refusal.set(error);
            }
            let result = if is_page { fetch_result::output_of(made.result) } else { made.result };
            let (result, size, note) = gateway.filtered(&own, result, bytes_out, select.as_deref()).await;
            notes.extend(
                note.map(|note| json!({ "kind": "select_note", "tool": &*tool.full, "message": note })),
            );
            let mut spared = bytes_out.saturating_sub(size);
            notes.extend(declined_note(&own, &tool));
            // A job keeps its whole result and shortens it on delivery.
            if went_on.load(Ordering::Acquire) {
                for note in notes {
                    own.session.notify(note);
                }
                return result;
            }
            let (owner, budget) = (own.owner(), own.limits.max_result_bytes);
            let mut result = match is_own && !PASSED_ON.contains(&&*tool.name) {
                true => gateway.kept.fit_own(&owner, result, budget).await,
                false => gateway.kept.fit(&owner, result, size, budget).await,
            };
            if size > budget {
                spared += size.saturating_sub(result.size().await);
            }
            gateway.metrics.spared_of_result(spared);
            if request.verbatim {
                // Delivered with the next answer of a meta-tool.
                notes.into_iter().for_each(|note| own.session.notify(note));
                return result;
            }
            notes.iter_mut().for_each(clean_all);
            if !notes.is_empty() {
                result.push_notices(&notes);
            }
            result
        };
        let result = run.wait(&self.jobs, caller, work.boxed()).await?;
        match refused.as_ref().and_then(|refused| refused.get()) {
            Some(error) => Err(Interrupt::Refused(error.clone())),
            None => Ok(result),
        }
    }

    /// Reserves a place in the quotas for new work, before any of the work is done.
    pub(super) fn admit(&self, caller: &Caller, launch: bool) -> Result<Admission, Fault> {
        if !caller.is_admitted {
            self.jobs.has_room()?;
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
        self.call_app(caller, arguments.handed_out(AnswerMode { background, select }, timeout)).await
    }

    /// Does everything before the server call. `written` are the params as received; `filled` are the same
    /// params with kept results and other actions' results inserted, if there are any.
    pub(super) async fn prepare(
        &self,
        caller: &Caller,
        name: &str,
        written: Value,
        filled: Option<FilledTemplate>,
    ) -> Result<PreparedCall, PrepareError> {
        let found = self.find_tool(caller, name).await;
        let found =
            found.map_err(|fault| with_the_near_call(&self.gate(&caller.session), fault, &written))?;
        self.prepare_tool(caller, found, written, filled).await
    }

    /// Does the same for a resolved tool.
    pub(super) async fn prepare_tool(
        &self,
        caller: &Caller,
        (mut gate, tool): (Gate, Arc<Tool>),
        written: Value,
        filled: Option<FilledTemplate>,
    ) -> Result<PreparedCall, PrepareError> {
        if tool.held().is_some() {
            return Box::pin(self.prepare_held(caller, tool, written, filled)).await;
        }
        let asked = match gate.verdict(&tool) {
            PolicyVerdict::Approve(rule) if caller.session.app.is_some() || caller.session.unattended => {
                return Err(needs_user(&tool.full, &rule).into());
            }
            PolicyVerdict::Approve(rule) => Some((rule, written.clone())),
            _ => None,
        };
        let (mut params, mut notes) = match filled {
            Some(filled) => in_text(&tool.schema, filled),
            None => (written, Vec::new()),
        };
        if &*tool.server == GATEWAY {
            notes.extend(builtin::under_own_names(&tool.name, &mut params));
        }
        let reading = if tool.schema.is_quick() {
            tool.schema.read(params)
        } else {
            // Validation may take a second and must not block other calls.
            let schema = tool.schema.clone();
            let read = tokio::task::spawn_blocking(move || schema.read(params)).await;
            read.map_err(|_| Fault::new(FaultCode::Internal, "The params could not be checked."))?
        };
        let mut reading = reading.map_err(|misfit| invalid_params(&tool, &misfit))?;
        reading.repaired.splice(0..0, notes);
        let mut approver = None;
        let is_rated = asked.is_some() && caller.run.is_none();
        if let Some((rule, written)) = asked {
            // The user is not asked about a call that would be refused.
            // No word of the model approves a server that it wants to add.
            let by = match caller.approved_elsewhere || always_asks(&tool) {
                true => ApproveBy::User,
                false => gate.approve_by(tool.at()),
            };
            // In a run the user may answer later, and the call is prepared again.
            if caller.run.is_none() && !self.was_rated(caller, &tool, &reading.params, by).await {
                self.take_rate(caller, &tool).await?;
            }
            let own = builtin::question(self, caller, &tool, &reading.params).transpose()?;
            let asked = RequiredApproval { rule, written, own, by };
            approver = Some(Box::pin(self.approve(caller, &tool, &reading.params, asked)).await?);
            // The user may have taken minutes; the configuration and the tool may have changed since.
            gate = self.gate(&caller.session);
            still_the_same(&gate, &tool)?;
        }
        let mut repaired = reading.repaired;
        if !repaired.is_empty() {
            self.metrics.repaired();
        }
        repaired.extend(passed_on(&tool, &reading.params));
        Ok(PreparedCall { gate, tool, params: reading.params, repaired, approver, is_rated })
    }

    /// Resolves a name to a tool that the caller may use, and returns the gate that resolved it. An unknown
    /// name waits while a server that may have the tool starts for the first time.
    pub(super) async fn find_tool(&self, caller: &Caller, name: &str) -> Result<(Gate, Arc<Tool>), Fault> {
        let mut gate = self.gate(&caller.session);
        let mut found = gate.tool(name);
        if found.is_err() && is_skill(name) {
            // The skill may be new in its folder.
            self.skills_of_now().await;
            gate = self.gate(&caller.session);
            found = gate.tool(name);
        }
        let unknown = match found {
            Err(fault) if fault.code == FaultCode::UnknownTool => fault,
            known => return known.map(|tool| (gate, tool)),
        };
        if let Some(fault) = gate.out_of_reach(name) {
            return Err(fault);
        }
        let mut unlisted = gate.unlisted();
        if let Some(server) = gate.named_server(name) {
            unlisted.retain(|one| *one == server);
        }
        if unlisted.is_empty() {
            return Err(unknown);
        }
        let in_time = tokio::select! {
            in_time = Box::pin(self.have_listed(&gate, &unlisted, caller.limits.soft_deadline / 2)) => in_time,
            () = caller.cancel.cancelled() => false,
        };
        let gate = self.gate(&caller.session);
        match gate.tool(name) {
            Err(fault) if fault.code == FaultCode::UnknownTool && !in_time => {
                Err(still_starting(name, &unlisted.join(", ")))
            }
            Err(fault) if fault.code == FaultCode::UnknownTool => {
                Err(gate.out_of_reach(name).unwrap_or(fault))
            }
            known => known.map(|tool| (gate, tool)),
        }
    }

    /// Waits until these servers, which are starting for the first time, have listed their tools or have failed. Returns
    /// whether that was in time.
    async fn have_listed(&self, gate: &Gate, servers: &[Arc<str>], most: Duration) -> bool {
        let listed = async {
            settled(servers.iter().filter_map(|server| gate.connection(server))).await;
            self.published().await;
        };
        tokio::time::timeout(LIST_WAIT.min(most), listed).await.is_ok()
    }

    /// Waits a moment for the first lists of all servers that may concern a session.
    pub async fn first_lists(&self, session: &Arc<Session>) {
        self.recalled_lists().await;
        let gate = self.gate(session);
        let unlisted = gate.unlisted();
        if !unlisted.is_empty() {
            self.have_listed(&gate, &unlisted, LIST_WAIT).await;
        }
    }

    /// Calls the tool and always returns a `CallToolResult`. `call` is the parent span of the request to the
    /// server.
    pub(super) async fn invoke(
        self: &Arc<Self>,
        caller: &Caller,
        prepared: PreparedCall,
        timeout: Option<Duration>,
        cancel: CancellationToken,
        progress: ProgressSink,
        call: &Span,
    ) -> CallOutcome {
        let approver = prepared.approver;
        let made = self.invoke_tool(caller, prepared, timeout, cancel, progress, call).await;
        CallOutcome { approver, ..made }
    }

    async fn invoke_tool(
        self: &Arc<Self>,
        caller: &Caller,
        prepared: PreparedCall,
        timeout: Option<Duration>,
        cancel: CancellationToken,
        progress: ProgressSink,
        call: &Span,
    ) -> CallOutcome {
        let tool = prepared.tool.clone();
        let own = |answer: Result<Value, Fault>| answer.map(CallResult::from).map_err(FailedCall::unreached);
        // Nonet's own tools answer in any case: they show why calls are refused.
        let is_own = &*tool.server == GATEWAY && tool.kind == EntryKind::Tool;
        let admitted = if is_own { Ok(()) } else { self.audit_admits() };
        if let Err(fault) = admitted {
            return self.made(caller, &tool, Err(FailedCall::unreached(fault)), Duration::ZERO);
        }
        if tool.kind != EntryKind::Tool {
            let caller = &Caller { cancel, ..caller.clone() };
            let limit = timeout.unwrap_or(Duration::MAX);
            let answer = Box::pin(self.guide(caller, &tool, &prepared.params, limit)).await;
            return self.made(caller, &tool, own(answer), Duration::ZERO);
        }
        if is_own {
            let caller = &Caller { cancel, ..caller.clone() };
            let limit = timeout.unwrap_or(Duration::MAX);
            let answer = tokio::time::timeout(limit, self.own_tool(caller, &tool.name, prepared.params))
                .await
                .unwrap_or_else(|_| Err(call_fault(&tool, CallError::TimedOut(limit))));
            return self.made(caller, &tool, own(answer), Duration::ZERO);
        }
        let began = Instant::now();
        let span = Span::request(call, &tool.server, &tool.name);
        let answer = self.call_server(caller, prepared, timeout, (cancel, progress), &span).await;
        let made = self.made(caller, &tool, answer, began.elapsed());
        span.ended(made.outcome);
        made
    }

    fn made(
        &self,
        caller: &Caller,
        tool: &Tool,
        answer: Result<CallResult, FailedCall>,
        in_server: Duration,
    ) -> CallOutcome {
        match answer {
            Ok(result) => {
                let outcome = if result.is_error() { "tool_error" } else { "ok" };
                if outcome == "ok" {
                    self.succeeded(caller, tool);
                }
                CallOutcome {
                    result,
                    outcome,
                    in_server,
                    counts: true,
                    fault: None,
                    refusal: None,
                    approver: None,
                }
            }
            Err(FailedCall { fault, reached }) => CallOutcome {
                result: fault.to_result().into(),
                outcome: fault.code.as_str(),
                in_server,
                counts: reached,
                fault: Some(fault.message),
                refusal: fault.refusal,
                approver: None,
            },
        }
    }

    async fn call_server(
        &self,
        caller: &Caller,
        prepared: PreparedCall,
        timeout: Option<Duration>,
        (cancel, progress): (CancellationToken, ProgressSink),
        span: &Span,
    ) -> Result<CallResult, FailedCall> {
        let PreparedCall { gate, tool, params, is_rated, .. } = prepared;
        let (gate, tool) = (&gate, &tool);
        let connection = gate.connection_for(&self.servers, caller, &tool.server);
        let Some(connection) = connection else {
            let message = format!(
                "`{}` is no longer configured, so nothing was called. Search for another tool.",
                tool.server
            );
            return Err(FailedCall::unreached(Fault::new(FaultCode::ServerDown, message)));
        };
        let settings = connection.settings();
        let passing =
            ContentInTransit { gate, caller, server: &tool.server, settings: &settings, label: &tool.full };
        self.may_leave(passing, &params).map_err(FailedCall::unreached)?;
        if !is_rated {
            self.take_rate(caller, tool).await.map_err(FailedCall::unreached)?;
        }
        let timeout = timeout.unwrap_or(settings.timeout);
        let mut meta = caller.meta.clone();
        span.pass_on(&mut meta);
        let (asker, owner) = (caller.asker.clone(), caller.account.id);
        let control = CallControl { timeout, cancel, progress: Some(progress), meta, asker, owner };
        let wait = READY_WAIT.min(caller.limits.soft_deadline / 2);
        let as_task = tool.as_task;
        let answer = connection.call_tool(&tool.own, params, as_task, control, wait).await;
        self.tell_of_breaker(caller, gate, &connection);
        match answer {
            Ok(mut result) => {
                match result.as_tree_mut() {
                    // Answers of a verbatim server stay unchanged.
                    Some(Value::Object(members)) if caller.lasting || !tool.verbatim => {
                        let blocks = members.get_mut("content").and_then(Value::as_array_mut);
                        self.note_links(caller, &tool.server, blocks.into_iter().flatten());
                    }
                    Some(Value::Object(_)) | None => {}
                    Some(other) => {
                        let message = format!(
                            "`{}` answered with something that is not a result: {}",
                            tool.server,
                            clip(&other.to_string(), 200)
                        );
                        let fault =
                            self.inspected_fault(passing, Fault::new(FaultCode::UpstreamError, message));
                        return Err(FailedCall { fault, reached: true });
                    }
                }
                self.inspected_result(passing, result)
                    .await
                    .map_err(|fault| FailedCall { fault, reached: true })
            }
            Err(error) => {
                let reached = !matches!(
                    error,
                    CallError::NotReady(_)
                        | CallError::Busy(_)
                        | CallError::Resting(_)
                        | CallError::Cancelled
                );
                let fault = self.inspected_fault(passing, call_fault(tool, error));
                Err(FailedCall { fault, reached })
            }
        }
    }

    /// Refuses a filter that cannot be used, before anything is called.
    async fn checked_filter(&self, filter: Option<&str>) -> Result<(), Fault> {
        let Some(filter) = filter else { return Ok(()) };
        let checked = Box::pin(select::check_all(vec![filter.into()])).await;
        checked.map_err(|(_, error)| wrong_filter("`select`", &error))
    }

    /// Applies a filter, if any, to a result of `size` bytes that is neither an error nor a question. Returns the result with its new size, and why the filter probably
    /// does not find what it is for.
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
        let filtered = match Box::pin(self.kept.select(&owner, filter, result.value())).await {
            Ok(selected) => {
                note = selected.note.map(|note| format!("`select`: {note}"));
                text_result(match selected.value {
                    Value::String(text) => text,
                    value => value.to_string(),
                })
            }
            // The call was made, so a bad filter must not lose its result.
            Err(error) => match self.kept.keep(&owner, Arc::new(result.into_tree().await)).await {
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

/// Returns the first text of a result.
fn first_text(result: &Value) -> &str {
    let mut blocks = result["content"].as_array().into_iter().flatten();
    blocks.find_map(|block| block.get("text")?.as_str()).unwrap_or_default()
}

/// Builds a `CallToolResult` with one text block.
pub fn text_result(text: String) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// Turns inserted values into text where the tool accepts only text. Returns the params and a note per
/// change.
pub(super) fn in_text(schema: &Schema, filled: FilledTemplate) -> (Value, Vec<String>) {
    let FilledTemplate { mut value, inserted } = filled;
    let mut notes = Vec::new();
    for one in inserted {
        if !schema.takes_only_text(&one.path) {
            continue;
        }
        let place = one.path.iter().try_fold(&mut value, |at, step| match at {
            Value::Object(fields) => fields.get_mut(step),
            Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
            _ => None,
        });
        if let Some(place) = place {
            *place = Value::String(one.text);
            notes.push(format!("{}: expects text, so the result was inserted as text", one.path.join(".")));
        }
    }
    (value, notes)
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

/// Whether a name is a skill's name, in any form, known or not.
fn is_skill(name: &str) -> bool {
    let name = without_client_prefix(name.trim()).unwrap_or(name.trim());
    split_given(name).is_some_and(|(category, _)| fold(category) == SKILLS)
}

/// Builds the fault for an app's call of a tool that needs the user's approval.
pub(super) fn needs_user(tool: &str, rule: &str) -> Fault {
    let message = format!(
        "`{tool}` runs only if the user agrees (`{rule}`), and nobody can be asked here. Continue without it, and say what is left to do."
    );
    Fault::new(FaultCode::NeedsApproval, message)
}

/// Checks that a tool has not changed since its call began to wait.
pub(super) fn still_the_same(gate: &Gate, tool: &Tool) -> Result<(), Fault> {
    let now = gate.tool(&tool.full)?;
    if now.hash != tool.hash || now.held().is_some() {
        return Err(redefined(tool));
    }
    Ok(())
}

/// Builds the fault for a call whose tool changed while the call waited.
fn redefined(tool: &Tool) -> Fault {
    let message = format!(
        "The server changed `{}` while the call waited. Read the new definition, then make the call again.",
        tool.full
    );
    Fault::new(FaultCode::NeedsApproval, message).next("get_tool", json!({ "name": &*tool.full }))
}

/// Builds the fault for a name that may belong to a server without a list.
fn still_starting(name: &str, servers: &str) -> Fault {
    let message = format!(
        "`{name}` is not known yet: {servers} has not finished starting. Call again in a few seconds."
    );
    Fault::new(FaultCode::ServerStarting, message).retry_after(Duration::from_secs(5))
}

/// Reports server requests that were declined. Missing roots are not reported: servers ask for roots speculatively.
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
    let methods: Vec<&str> = declined.iter().map(|one| one.method.as_str()).collect();
    Some(json!({ "kind": "request_declined", "tool": &*tool.full, "methods": methods, "message": message }))
}

/// Moves headers and the next page's address from the `_meta` of a result into a value beside the result.
fn beside(tool: &Tool, result: &mut Value) -> Option<Value> {
    let meta = result.get_mut("_meta")?.as_object_mut()?;
    let beside = meta.shift_remove(BESIDE)?;
    if meta.is_empty()
        && let Some(members) = result.as_object_mut()
    {
        members.shift_remove("_meta");
    }
    let mut note = json!({ "kind": "response", "tool": &*tool.full });
    note.as_object_mut()?.extend(beside.as_object()?.clone());
    Some(note)
}

fn repair_note(prepared: &PreparedCall) -> Option<Value> {
    (!prepared.repaired.is_empty()).then(
        || json!({ "kind": "params_repaired", "tool": &*prepared.tool.full, "changes": prepared.repaired }),
    )
}
