//! What a script asks for, carried out: calls on the road of every call, searches, kept results, questions.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use nonet_base::text::clip;
use nonet_config::AppKind;
use nonet_script::frames::{Op, Reading};
use nonet_servers::catalog::{EntryKind, Tool};
use nonet_state::{
    faults::error_of,
    questions::{ApprovalRequest, QuestionOutcome},
    session::Caller,
};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{self, is_error, json_len, value_of},
};
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::drive::{DoneRequest, Driver};
use crate::{
    AskArguments, SearchArguments,
    call::{CallParams, CallPlan, PreparedCall, RecordedCall, Unready},
    discover::Detail,
    gate::Gate,
    graph::{OpenQuestion, RunLog, RunTurn},
};

/// The largest value that a script gets, in bytes of JSON; a larger one stays a kept result.
const MAX_VALUE: usize = 8 << 20;
/// How many lines of a kept result a script gets at a time.
const LINES: usize = 50_000;
/// The longest request of a search, and the longest name, in bytes.
const MAX_TEXT: usize = 2_000;
/// The longest sleep.
const MAX_SLEEP: Duration = Duration::from_secs(3_600);
/// How many characters of a call's params a report shows.
const PARAMS: usize = 200;
/// The answers to the question about a sign-in.
const SIGNED_IN: &str = "done";
const SKIP: &str = "skip";

/// How a request ended.
pub(super) enum RequestEnd {
    /// It waits for the user.
    Open(Box<OpenQuestion>),
    /// It has an answer; one that `lasts` is kept for the next run.
    Done { done: DoneRequest, lasts: bool },
}

/// The answer of a call before it is kept.
struct CallEnd {
    name: String,
    changes: bool,
    answer: Result<Value, Value>,
    lasts: bool,
    /// Whether it is not made again, although it failed.
    is_final: bool,
}

impl CallEnd {
    /// Ends a call that was not made.
    fn refused(name: &str, fault: &Fault) -> Self {
        let lasts = fault.code != FaultCode::Cancelled;
        Self { name: name.into(), changes: false, answer: Err(thrown(fault)), lasts, is_final: false }
    }
}

impl RequestEnd {
    fn of(name: &str, answer: Result<Value, Fault>) -> Self {
        let lasts = answer.as_ref().map_or_else(|fault| fault.code != FaultCode::Cancelled, |_| true);
        let answer = Arc::new(answer.map_err(|fault| thrown(&fault)));
        let (name, params) = (name.into(), String::new());
        let (is_call, changes, is_earlier, is_final) = (false, false, false, false);
        let done = DoneRequest { name, params, is_call, changes, is_earlier, is_final, answer };
        Self::Done { done, lasts }
    }
}

/// Returns a fault as a script sees it.
fn thrown(fault: &Fault) -> Value {
    let mut told = fault.to_value();
    nonet_base::json::take_member(&mut told, "error")
}

impl Driver<'_> {
    /// Carries out a request.
    pub(super) async fn carry_out(&self, id: u64, place: &str, op: Op) -> RequestEnd {
        let _look = match op {
            Op::Search { .. } | Op::Describe { .. } | Op::Result { .. } => self.place(&self.looks).await,
            _ => None,
        };
        match op {
            Op::Call { name, params } => self.call(id, place, &name, params).await,
            Op::Search { query, more } => RequestEnd::of("search", self.search(query, more).await),
            Op::Describe { name } => RequestEnd::of("describe", self.describe(name).await),
            Op::Result { reference, how, filter, from } => {
                RequestEnd::of("result", self.read(&reference, how, filter, from).await)
            }
            Op::Ask { question, choices } => {
                let written = match choices {
                    Some(choices) => json!({ "question": question, "choices": choices }),
                    None => json!({ "question": question }),
                };
                match AskArguments::of_step("ask", written, None) {
                    Ok(asked) => self.ask(asked).await,
                    Err(fault) => RequestEnd::of("ask", Err(fault)),
                }
            }
            Op::Sleep { ms } => {
                let time = Duration::try_from_secs_f64(ms / 1_000.0).unwrap_or(MAX_SLEEP).min(MAX_SLEEP);
                tokio::select! {
                    () = tokio::time::sleep(time) => RequestEnd::of("sleep", Ok(Value::Null)),
                    () = self.halt.cancelled() => RequestEnd::of("sleep", Err(not_run())),
                }
            }
        }
    }

    /// Calls a tool or an app. A sign-in that is missing is a question to the user.
    async fn call(&self, id: u64, place: &str, name: &str, params: Value) -> RequestEnd {
        let shown = clip(&params.to_string(), PARAMS);
        if self.record.was_cut_off(place) {
            let message = format!(
                "`{name}` was in flight when the earlier run was cut off, so whether it has happened is not known. Check that with another tool; then call it again or go on."
            );
            let answer = Err(thrown(&Fault::new(FaultCode::Cancelled, message)));
            let end = CallEnd { name: name.into(), changes: true, answer, lasts: true, is_final: true };
            return ended(end, shown);
        }
        let mut end = match self.once(id, place, name, params.clone()).await {
            Ok(end) => end,
            Err(open) => return RequestEnd::Open(open),
        };
        if let Some(asked) = self.sign_in(&end) {
            // Refused, so not in flight.
            self.apps.scripts.unmark_call(self.script, place).await;
            match self.said(asked).await {
                Ok(said) if said == SIGNED_IN => match self.once(id, place, name, params).await {
                    Ok(again) => end = again,
                    Err(open) => return RequestEnd::Open(open),
                },
                Ok(_) => {}
                Err(open) => return RequestEnd::Open(open),
            }
        }
        ended(end, shown)
    }

    /// Returns the question about a sign-in that a call needs.
    fn sign_in(&self, end: &CallEnd) -> Option<AskArguments> {
        let error = end.answer.as_ref().err()?;
        if error["code"] != FaultCode::AuthRequired.as_str() || self.caller.session.unattended {
            return None;
        }
        let why = error["message"].as_str().unwrap_or_default();
        let question = format!("`{}` needs a sign-in before the script goes on. {why}", end.name);
        AskArguments::of_step("sign-in", json!({ "question": question, "choices": [SIGNED_IN, SKIP] }), None)
            .ok()
    }

    /// Returns the user's choice, in this run or an earlier one.
    async fn said(&self, asked: AskArguments) -> Result<String, Box<OpenQuestion>> {
        let key = asked.in_chat().message;
        if let Some(said) = self.record.said(&key) {
            return Ok(said);
        }
        match self.ask(asked).await {
            RequestEnd::Open(open) => Err(open),
            RequestEnd::Done { done, .. } => {
                Ok(done.answer.as_ref().as_ref().ok().and_then(Value::as_str).unwrap_or(SKIP).into())
            }
        }
    }

    async fn once(
        &self,
        id: u64,
        place: &str,
        name: &str,
        params: Value,
    ) -> Result<CallEnd, Box<OpenQuestion>> {
        let gate = Gate::of(&self.apps.publisher, &self.caller.session);
        match gate.tool(name) {
            Ok(tool) if tool.kind == EntryKind::App => self.call_app(place, &tool, params).await,
            _ => self.call_tool(id, place, name, params).await,
        }
    }

    /// Takes a place for a request, once the script has read enough of its answers.
    async fn place<'p>(&self, places: &'p Semaphore) -> Option<SemaphorePermit<'p>> {
        loop {
            let place = places.acquire().await.ok();
            if !self.is_full() {
                return place;
            }
            drop(place);
            self.has_read().await;
        }
    }

    async fn call_app(&self, place: &str, tool: &Tool, params: Value) -> Result<CallEnd, Box<OpenQuestion>> {
        let input = match params {
            Value::Object(params) => tool.app_input(params),
            input => input,
        };
        let input = match self.apps.keeping.kept.fill(&self.caller.owner(), &input).await {
            Ok(filled) => filled.map_or(input, |filled| filled.value),
            Err(fault) => return Ok(CallEnd::refused(&tool.full, &fault)),
        };
        // The steps of a workflow have their own places in the record.
        let config = self.apps.servers.config();
        let kind = config.apps.get(&*tool.name).map(|app| &app.kind);
        let is_marked = !matches!(kind, Some(AppKind::Workflow { .. }));
        let _slot = self.place(&self.slots).await;
        if self.halt.is_cancelled() {
            return Ok(CallEnd::refused(&tool.full, &not_run()));
        }
        if is_marked {
            self.apps.scripts.note_call(self.script, place, &tool.full);
        }
        let kept = match self.keep_noted().await {
            // The steps of a workflow are parts of the record.
            Ok(()) => self.apps.scripts.store_script(self.script).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = kept {
            return Ok(CallEnd::refused(&tool.full, &fault));
        }
        let log = Some(RunLog::new(self.record.journal()).part(place));
        let caller = Caller { cancel: self.cancel.child_token(), ..self.caller.clone() };
        let one = self.apps.run_inner_app(&caller, &tool.full, &tool.name, input, None, log).await;
        let one = match one {
            Ok(one) => one,
            Err(fault) => return Ok(CallEnd::refused(&tool.full, &fault)),
        };
        if let Some(open) = one.open {
            if is_marked {
                self.apps.scripts.unmark_call(self.script, place).await;
            }
            return Err(open);
        }
        let (lasts, succeeded) = (!self.was_cut_off(&one.result), !is_error(&one.result));
        let answer = self.value(one.result).await;
        let is_final = succeeded && answer.is_err();
        Ok(CallEnd { name: tool.full.to_string(), changes: true, answer, lasts, is_final })
    }

    async fn call_tool(
        &self,
        id: u64,
        place: &str,
        name: &str,
        params: Value,
    ) -> Result<CallEnd, Box<OpenQuestion>> {
        let (apps, caller) = (self.apps, self.caller);
        let begun = apps.observing.begin(caller, name, &params);
        let asks = |asked: ApprovalRequest, _: Option<String>| {
            async move {
                let tool: Arc<str> = asked.approval.tool().into();
                self.is_quiet(id, &tool, &asked.written).await;
                if self.halt.is_cancelled() {
                    return Err(not_run().into());
                }
                let shown: Vec<Value> = {
                    let asking = self.asking.lock();
                    asking.iter().filter(|(of, _)| *of == tool).map(|(_, params)| params.clone()).collect()
                };
                let (count, most) = (shown.len(), shown.len().min(20));
                let asked = asked.of_calls(count, true, shown.get(..most).unwrap_or_default());
                apps.asking.ask_in_run(caller, Some(self.limit), asked).await.map_err(Unready::Open)
            }
            .boxed()
        };
        let mut plan = CallPlan {
            begun: Some(&begun),
            name,
            found: None,
            params: CallParams::Written(params),
            select: None,
            asks: &asks,
        };
        let cancel = self.cancel.child_token();
        let turn = async |prepared: &PreparedCall| {
            let place_of_call = loop {
                let run = RunTurn { caller, slots: &self.slots, halt: &self.halt };
                let place = apps.turn_of(run, prepared, None, &cancel).await?;
                if !self.is_full() {
                    break place;
                }
                drop(place);
                self.has_read().await;
            };
            if self.halt.is_cancelled() {
                return Err(not_run());
            }
            if prepared.tool.read_only {
                self.keep_soon();
            } else {
                // What may be repeated without harm needs no mark.
                if !prepared.tool.is_repeatable() {
                    apps.scripts.note_call(self.script, place, &prepared.tool.full);
                }
                self.keep_noted().await?;
            }
            Ok((place_of_call, None, cancel.clone()))
        };
        let end = match Box::pin(apps.calls.run(caller, &begun, &mut plan, turn)).await {
            Ok(RecordedCall { tool, made, .. }) => {
                let result = Arc::new(made.result.into_tree().await);
                let (lasts, succeeded) = (!self.was_cut_off(&result), !is_error(&result));
                let answer = self.value(result).await;
                let is_late =
                    answer.as_ref().is_err_and(|error| error["code"] == FaultCode::Timeout.as_str());
                let is_final = succeeded && answer.is_err() || is_late && !tool.is_repeatable();
                CallEnd { name: tool.full.to_string(), changes: !tool.read_only, answer, lasts, is_final }
            }
            Err(Unready::Open(asked)) => return Err(Box::new(OpenQuestion::Approve(*asked))),
            Err(Unready::Fault(fault)) => CallEnd::refused(name, &fault),
        };
        Ok(end)
    }

    /// Whether a call was cut off, so that its answer says nothing about it.
    fn was_cut_off(&self, result: &Value) -> bool {
        is_error(result)
            && (error_of(result)["code"] == FaultCode::Cancelled.as_str()
                || self.apps.servers.stopping().is_cancelled())
    }

    /// Returns the value of a result as a script gets it, or its error. Pictures and sound stay kept results:
    /// the script gets handles of them.
    async fn value(&self, mut result: Arc<Value>) -> Result<Value, Value> {
        if is_error(&result) {
            return Err(error_of(&result));
        }
        let owner = self.caller.owner();
        let whole = result.clone();
        let media = results::take_media(&mut result);
        let value = value_of(&result);
        let is_large = json_len(&value) > MAX_VALUE;
        if media.is_empty() && !is_large {
            return Ok(value);
        }
        let kept = self.apps.keeping.kept.keep(&owner, whole.clone()).await;
        let kept = kept.map_err(|error| {
            let message = format!(
                "The call was made, but its result, which a script cannot hold, was not kept: {error}."
            );
            thrown(&Fault::new(FaultCode::Internal, message))
        })?;
        if is_large {
            let message = format!(
                "The call was made, and its result has more than {MAX_VALUE} bytes. It is kept as {kept}: read parts of it with result(ref).jq(filter)."
            );
            let fault =
                Fault::new(FaultCode::InvalidParams, message).details(json!({ "ref": kept.reference }));
            return Err(thrown(&fault));
        }
        let handles = handles(&whole, &kept.reference);
        Ok(match value {
            Value::String(text) if text.is_empty() => json!({ "media": handles }),
            value => json!({ "value": value, "media": handles }),
        })
    }

    async fn search(&self, query: String, mut more: Map<String, Value>) -> Result<Value, Fault> {
        bounded("search(query)", &query)?;
        more.insert("query".into(), query.into());
        let arguments: SearchArguments = serde_json::from_value(Value::Object(more)).map_err(|error| {
            Fault::new(FaultCode::InvalidParams, format!("search(query, options): {error}."))
        })?;
        let detail = arguments.detail.or(Some(Detail::Signature));
        let found = self.apps.find.search(self.caller, SearchArguments { detail, ..arguments }).await?;
        let mut found = json!(found);
        let hits = ["results", "tools", "categories"].into_iter().find(|key| found.get(key).is_some());
        Ok(hits.map_or(Value::Null, |key| nonet_base::json::take_member(&mut found, key)))
    }

    async fn describe(&self, name: String) -> Result<Value, Fault> {
        bounded("describe(name)", &name)?;
        Ok(json!(self.apps.find.describe(self.caller, &[name], false).await?))
    }

    /// Reads a kept result.
    async fn read(
        &self,
        reference: &str,
        how: Reading,
        filter: Option<String>,
        from: usize,
    ) -> Result<Value, Fault> {
        let kept = &self.apps.keeping.kept;
        let owner = self.caller.owner();
        let value = match (how, filter) {
            (Reading::Jq, Some(filter)) => kept.selected(&owner, reference, &filter).await?,
            (Reading::Jq, None) => {
                return Err(Fault::new(
                    FaultCode::InvalidParams,
                    "result(ref).jq(filter): `filter` is required.",
                ));
            }
            (Reading::Json, _) => kept.value(&owner, reference).await?.body.into_value(),
            (Reading::Text, _) => json!(kept.value(&owner, reference).await?.body.into_text()),
            (Reading::Lines, _) => {
                let text = kept.value(&owner, reference).await?.body.into_text();
                let lines: Vec<&str> = text.lines().skip(from).take(LINES + 1).collect();
                let page = lines.get(..lines.len().min(LINES)).unwrap_or_default();
                match lines.len() > LINES {
                    true => json!({ "lines": page, "next": from + LINES }),
                    false => json!({ "lines": page }),
                }
            }
        };
        match json_len(&value) > MAX_VALUE {
            true => {
                let message =
                    format!("This has more than {MAX_VALUE} bytes. Select less with result(ref).jq(filter).");
                Err(Fault::new(FaultCode::InvalidParams, message))
            }
            false => Ok(value),
        }
    }

    /// Asks the user, in a form if the client has forms.
    async fn ask(&self, asked: AskArguments) -> RequestEnd {
        let run = self.caller.run.as_ref();
        // Of several questions of a run, one is asked at a time.
        let _turn = match run {
            Some(run) => Some(run.turn.lock().await),
            None => None,
        };
        let asking = Caller { unasked: !run.is_some_and(|run| run.may_ask), ..self.caller.clone() };
        let paused = self.limit.pause();
        let said = self.apps.asking.questions.ask(&asking, &asked).await;
        drop(paused);
        match said {
            Ok(QuestionOutcome::Answer(answer)) => RequestEnd::of("ask", super::answer::said(&json!(answer))),
            Ok(QuestionOutcome::InChat(_)) => RequestEnd::Open(Box::new(OpenQuestion::Ask(asked))),
            Err(fault) => RequestEnd::of("ask", Err(fault)),
        }
    }
}

fn ended(end: CallEnd, params: String) -> RequestEnd {
    let CallEnd { name, changes, answer, lasts, is_final } = end;
    let (is_call, is_earlier, answer) = (true, false, Arc::new(answer));
    RequestEnd::Done {
        done: DoneRequest { name, params, is_call, changes, is_earlier, is_final, answer },
        lasts,
    }
}

/// Refuses a text that is longer than any name or request.
fn bounded(what: &str, text: &str) -> Result<(), Fault> {
    match text.len() > MAX_TEXT {
        true => Err(Fault::new(FaultCode::InvalidParams, format!("{what} takes at most {MAX_TEXT} bytes."))),
        false => Ok(()),
    }
}

fn not_run() -> Fault {
    Fault::new(FaultCode::Cancelled, "Not run: the script has ended.")
}

/// Returns what a script gets of pictures and sound: where they are kept, and a template for params, which
/// stands for their data.
fn handles(result: &Value, reference: &str) -> Vec<Value> {
    let blocks = result["content"].as_array().into_iter().flatten().enumerate();
    let media = blocks.filter(|(_, block)| block.get("data").is_some_and(Value::is_string));
    media
        .map(|(at, block)| {
            let bytes = block["data"].as_str().map_or(0, |data| data.len() / 4 * 3);
            json!({
                "ref": reference,
                "mimeType": block["mimeType"],
                "bytes": bytes,
                "data": format!("{{{{ref:{reference}.content.{at}.data}}}}"),
            })
        })
        .collect()
}
