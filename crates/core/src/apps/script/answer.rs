//! What the caller of a script reads: what it returned, or why it stopped and what was done.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use nonet_api::script::{ScriptAnswer, ScriptCall, ScriptStop};
use nonet_base::clock::millis;
use nonet_script::frames::{Failure, FailureKind};
use nonet_state::session::Caller;
use nonet_text::{
    fault::{Fault, FaultCode},
    results::json_len,
};
use serde_json::{Value, json};

use super::{
    CPU, RUN_SCRIPT, ScriptRun, ScriptState,
    drive::{DoneRequest, ScriptEnd},
    way_on,
};
use crate::{apps::Apps, call::answer_of};

/// How many calls the report of a stopped script lists.
const LISTED: usize = 12;
/// How many pictures and sounds that a script returns are shown.
const SHOWN_MEDIA: usize = 8;
/// How many bytes of them together.
const MEDIA_BYTES: usize = 8 << 20;

/// Returns the value of the user's answer to a question, or the fault if there is none.
pub(crate) fn said(answer: &Value) -> Result<Value, Fault> {
    let message = match answer["status"].as_str().unwrap_or_default() {
        "answered" | "approved" => {
            let said = ["answer", "content"].into_iter().find_map(|key| answer.get(key));
            return Ok(said.cloned().unwrap_or(json!(true)));
        }
        "denied" => "The user said no.",
        "timed_out" => "The user did not answer in time.",
        _ => "The user closed the question without an answer.",
    };
    Err(Fault::new(FaultCode::Cancelled, message))
}

impl Apps {
    /// Builds the answer of a script that has ended.
    pub(super) async fn returned(
        &self,
        caller: &Caller,
        run: &ScriptRun,
        output: Value,
        log: String,
        (done, unused_answers): (Vec<DoneRequest>, usize),
        elapsed: Duration,
    ) -> Value {
        let made = done.iter().filter(|one| one.is_call);
        let media = self.media_in(caller, &output).await;
        let is_app = run.app_id != RUN_SCRIPT;
        let answer = ScriptAnswer {
            app_id: is_app.then(|| run.app_id.clone()),
            task_id: run.record.id.clone(),
            script: run.kept.label.clone(),
            output,
            tool_calls: made.clone().filter(|one| !one.is_earlier).count(),
            earlier_calls: made.filter(|one| one.is_earlier).count(),
            unused_answers,
            log,
            elapsed_ms: millis(elapsed),
        };
        let mut answer = answer_of(&answer);
        if let Some(blocks) = answer.get_mut("content").and_then(Value::as_array_mut) {
            blocks.extend(media);
        }
        answer
    }

    /// Returns the pictures and sounds whose handles a script returns.
    async fn media_in(&self, caller: &Caller, output: &Value) -> Vec<Value> {
        let (mut handles, mut blocks, mut left) = (BTreeSet::new(), Vec::new(), MEDIA_BYTES);
        find_handles(output, &mut handles);
        for block in handles {
            let filled = self.keeping.kept.fill(&caller.owner(), &json!(block)).await;
            let Ok(Some(filled)) = filled else { continue };
            // A script can write any template; only pictures and sound are shown.
            let is_media = matches!(filled.value["type"].as_str(), Some("image" | "audio"));
            let size = json_len(&filled.value);
            if is_media && filled.value["data"].is_string() && size <= left {
                left -= size;
                blocks.push(filled.value);
            }
        }
        blocks
    }

    /// Builds the fault of a script that has stopped early, and keeps what it takes to go on.
    pub(super) async fn stopped_script(
        &self,
        caller: &Caller,
        run: &ScriptRun,
        (end, state): (ScriptEnd, ScriptState),
        done: Vec<DoneRequest>,
        left: Duration,
    ) -> Fault {
        let grants = caller.run.as_ref().map(|run| run.kept()).unwrap_or_default();
        let token = self.scripts.set_script_aside(run, state, grants, left).await;
        let (fault, failure, log) = match end {
            ScriptEnd::Failed { failure, log } => (fault_of(&failure), Some(failure), log),
            ScriptEnd::TimedOut => (timed_out(run.timeout), None, String::new()),
            ScriptEnd::Cancelled => {
                (Fault::new(FaultCode::Cancelled, "The script was cancelled."), None, String::new())
            }
            ScriptEnd::Fault(fault) => (*fault, None, String::new()),
            // These are no failures.
            ScriptEnd::Returned { .. } | ScriptEnd::Open(_) => {
                (Fault::new(FaultCode::Internal, "The script has ended."), None, String::new())
            }
        };
        let made: Vec<&DoneRequest> = done.iter().filter(|one| one.is_call).collect();
        let failed = made.iter().filter(|one| one.answer.is_err()).count();
        let mut listed = made.clone();
        // What has changed something is more important than what was read.
        listed.sort_by_key(|one| (!one.changes, one.answer.is_ok()));
        listed.truncate(LISTED);
        let mut calls = Vec::new();
        for one in listed {
            calls.push(self.told(caller, one).await);
        }
        let stop = ScriptStop {
            line: failure.as_ref().and_then(|failure| failure.line),
            column: failure.as_ref().and_then(|failure| failure.column),
            log,
            calls: made.len(),
            failed,
            done: calls,
        };
        let mut details = json!(stop);
        if let Some(Value::Object(before)) = fault.details.as_deref() {
            for (key, value) in before {
                details[key] = value.clone();
            }
        }
        let fault = fault.details(details);
        match token {
            Some(token) => {
                let message = format!(
                    "{} What has ended is kept: `resume` goes on from there, with a corrected `script` if you give one, and makes only the failed calls again.",
                    fault.message
                );
                Fault { message, ..fault }.then(way_on(&token))
            }
            None => fault,
        }
    }

    async fn told(&self, caller: &Caller, one: &DoneRequest) -> ScriptCall {
        let (reference, error) = match &*one.answer {
            Ok(value) => {
                let result = json!({ "content": [], "structuredContent": { "value": value } });
                let kept = self.keeping.kept.keep(&caller.owner(), Arc::new(result)).await;
                (kept.ok().map(|kept| kept.reference), None)
            }
            Err(error) => (None, error["message"].as_str().map(String::from)),
        };
        ScriptCall {
            name: one.name.clone(),
            params: one.params.clone(),
            changes: one.changes,
            reference,
            error,
        }
    }
}

/// Finds handles of media: the templates of their blocks.
fn find_handles(value: &Value, found: &mut BTreeSet<String>) {
    if found.len() >= SHOWN_MEDIA {
        return;
    }
    match value {
        Value::Object(members) => {
            let template = members.get("data").and_then(Value::as_str);
            let block = template.and_then(|template| {
                let block = template.strip_suffix(".data}}")?;
                block.starts_with("{{ref:r-").then(|| format!("{block}}}}}"))
            });
            match block.filter(|_| members.contains_key("mimeType")) {
                Some(block) => drop(found.insert(block)),
                None => members.values().for_each(|one| find_handles(one, found)),
            }
        }
        Value::Array(items) => items.iter().for_each(|one| find_handles(one, found)),
        _ => {}
    }
}

fn timed_out(timeout: Duration) -> Fault {
    let limit = humantime::format_duration(timeout);
    let message =
        format!("The script did not end within {limit}. Give a longer `timeout`, in seconds, up to 3600.");
    Fault::new(FaultCode::Timeout, message)
}

fn fault_of(failure: &Failure) -> Fault {
    let place = match (failure.line, failure.column) {
        (Some(line), Some(column)) => format!(" at line {line}, column {column}"),
        _ => String::new(),
    };
    let message = &failure.message;
    match failure.kind {
        FailureKind::Syntax => Fault::new(
            FaultCode::InvalidParams,
            format!("The script cannot be read{place}: {message}. Nothing was run."),
        ),
        FailureKind::Uncaught => {
            let code = failure.code.as_deref().and_then(FaultCode::of).unwrap_or(FaultCode::InvalidParams);
            Fault::new(code, format!("The script failed{place}: {message}."))
        }
        FailureKind::Cpu => {
            let limit = humantime::format_duration(CPU);
            Fault::new(
                FaultCode::Timeout,
                format!("The script was stopped{place}: it computed for more than {limit}."),
            )
        }
        FailureKind::Memory => Fault::new(
            FaultCode::InvalidParams,
            format!(
                "The script was stopped{place}: it needed more memory than the 128 MB that a script has. Read large results in parts, with result(ref)."
            ),
        ),
        FailureKind::Stuck => {
            Fault::new(FaultCode::InvalidParams, format!("The script was stopped: {message}."))
        }
    }
}
