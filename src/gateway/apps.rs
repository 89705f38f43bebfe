//! Apps: the entries of `[apps.*]`, each a server's tool or a workflow of tool calls.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Gateway,
    call::{Begun, text_result},
    faults::error_of,
    graph::{Action, Ended, Plan, SoFar},
    interrupt::Interrupt,
    run::Run,
    session::Caller,
};
use crate::{
    config::{App, AppKind, Step},
    downstream::ProgressSink,
    fault::{Code, Fault},
    jobs::Progress,
    name,
    results::{is_error, json_len, source_of, value_of},
    schema::Schema,
    template::{self, Named, Source},
};

/// How long an app may take if the caller does not say, in seconds.
const TIMEOUT_S: u64 = 120;
/// How many steps of a workflow run at a time.
const CONCURRENCY: usize = 8;
/// The name that a workflow's templates know the input by.
const INPUT: &str = "input";

/// The arguments of `call_app`.
#[derive(Debug, Default, serde::Deserialize)]
pub struct AppArguments {
    app_id: Option<String>,
    #[serde(default)]
    input: Value,
    timeout: Option<u64>,
}

impl Gateway {
    /// The `call_app` meta-tool.
    pub async fn call_app(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: AppArguments,
    ) -> Result<Value, Interrupt> {
        let Some(id) = arguments.app_id.filter(|id| !id.trim().is_empty()) else {
            return Ok(text_result(self.apps().to_string()));
        };
        let config = self.config();
        let Some((id, app)) = config.apps.get_key_value(id.trim()) else {
            let near = name::nearest(&id, config.apps.keys().map(String::as_str), 3);
            let fault = Fault::new(
                Code::NotFound,
                format!("There is no app `{id}`. call_app without `app_id` lists them."),
            );
            let next = match near.first() {
                Some(first) => json!({ "app_id": first, "input": arguments.input }),
                None => json!({}),
            };
            return Err(fault.next("call_app", next).suggest(near).into());
        };
        let mut input = arguments.input.clone();
        if let Some(schema) = &app.input_schema {
            let schema = Schema::new(schema.clone());
            match schema.read(arguments.input.clone()) {
                Ok(reading) => {
                    let mut changes = reading.repaired;
                    let unknown = schema.unknown(&reading.params);
                    changes.extend(unknown.iter().map(|key| format!("the app does not know `{key}`")));
                    if !changes.is_empty() {
                        caller
                            .session
                            .notify(json!({ "kind": "input_repaired", "app": id, "changes": changes }));
                    }
                    input = Value::Object(reading.params);
                }
                Err(misfit) => {
                    let example = json!({ "app_id": id, "input": misfit.example });
                    let message =
                        format!("The input does not fit the app `{id}`: {}.", misfit.faults.join("; "));
                    return Err(Fault::new(Code::InvalidParams, message)
                        .details(json!({ "corrected_call": { "tool": "call_app", "arguments": example } }))
                        .next("call_app", json!({}))
                        .into());
                }
            }
        }
        let began = Instant::now();
        let timeout = Duration::from_secs(arguments.timeout.unwrap_or(TIMEOUT_S).clamp(1, 3_600));
        let cancel = CancellationToken::new();
        match &app.kind {
            AppKind::Tool { tool } => {
                self.call_tool_app(caller, began, id, tool, input, timeout, cancel).await
            }
            AppKind::Workflow { steps, output } => {
                self.call_workflow(caller, began, id, steps, output.as_ref(), input, timeout, cancel).await
            }
        }
    }

    /// The list of apps.
    fn apps(&self) -> Value {
        let config = self.config();
        let apps: Vec<Value> = config.apps.iter().map(|(id, app)| describe(id, app)).collect();
        let mut answer = json!({ "apps": apps });
        if apps.is_empty() {
            answer["hint"] =
                json!("No apps are configured. The user adds one as [apps.NAME] in servers.toml.");
        }
        answer
    }

    #[allow(clippy::too_many_arguments)] // one call, each argument read once
    async fn call_tool_app(
        self: &Arc<Self>,
        caller: &Caller,
        began: Instant,
        id: &str,
        tool: &str,
        input: Value,
        timeout: Duration,
        cancel: CancellationToken,
    ) -> Result<Value, Interrupt> {
        let (gate, tool) = self.find_tool(caller, tool).await?;
        // Text for a tool that takes one thing is that thing.
        let input = match (input, tool.schema.parameters().as_slice()) {
            (Value::String(text), [first, rest @ ..])
                if rest.iter().all(|other| !other.required) && !text.trim_start().starts_with('{') =>
            {
                json!({ first.name: text })
            }
            (input, _) => input,
        };
        let prepared = self.prepare_tool(caller, (gate, tool.clone()), input.clone(), None).await?;
        let own = Caller { cancel: cancel.clone(), ..caller.clone() };
        let (gateway, token, id) = (self.clone(), cancel.clone(), id.to_string());
        let sink = ProgressSink::new(caller.progress.clone());
        let last = sink.clone();
        let progress: Progress = Arc::new(move || last.last());
        let run = Run { progress, began, ..Run::new(format!("app {}", tool.full), cancel) };
        let went_on = run.went_on.clone();
        let work = async move {
            let begun = Begun { at: began, ..Begun::new(&own, &input) };
            let (called, repaired) = (prepared.tool.clone(), prepared.repaired.clone());
            let made = gateway.invoke(&own, prepared, Some(timeout), token, sink, &begun.span).await;
            gateway.record(&own, &called, &begun, json_len(&made.result), &made);
            if is_error(&made.result) {
                return made.result;
            }
            let mut answer = json!({ "app_id": id, "output": value_of(&made.result), "tool_calls": 1 });
            if !repaired.is_empty() {
                answer["repaired"] = json!(repaired);
            }
            gateway.handed_out(&own, text_result(answer.to_string()), &went_on).await
        };
        self.run(caller, run, work).await
    }

    #[allow(clippy::too_many_arguments)] // one call, each argument read once
    async fn call_workflow(
        self: &Arc<Self>,
        caller: &Caller,
        began: Instant,
        id: &str,
        steps: &[Step],
        output: Option<&Value>,
        input: Value,
        timeout: Duration,
        cancel: CancellationToken,
    ) -> Result<Value, Interrupt> {
        let actions = steps
            .iter()
            .map(|step| Action {
                id: step.id.clone(),
                name: step.tool.clone(),
                params: Value::Object(step.params.clone()),
                after: step.after.clone(),
                timeout_ms: None,
                select: None,
                optional: step.optional,
            })
            .collect();
        let plan = Plan::new(actions, &[INPUT])?;
        for action in plan.actions() {
            self.find_tool(caller, &action.name).await?;
        }
        let given = BTreeMap::from([(INPUT.to_string(), Arc::new(Source::from(input)))]);
        let span = caller.meta_span("call_app");
        let own = Caller { cancel: cancel.clone(), trace: span.parent(), ..caller.clone() };
        let (gateway, token) = (self.clone(), cancel.clone());
        let (id, output) = (id.to_string(), output.cloned());
        let so_far = SoFar::new(&plan);
        let seen = so_far.clone();
        let progress: Progress = Arc::new(move || Some(seen.counts()));
        let run = Run { progress, began, ..Run::new(format!("app {id}"), cancel) };
        let went_on = run.went_on.clone();
        let work = async move {
            // A token of its own: running out of time is not being cancelled by the user.
            let limit = token.child_token();
            let over = limit.clone();
            let timer = tokio::spawn(async move {
                tokio::time::sleep(timeout).await;
                over.cancel();
            });
            let ended = gateway.run_graph(&own, &plan, &given, CONCURRENCY, true, limit, &so_far).await;
            timer.abort();
            let answer = finish(&id, &plan, &ended, &given, output.as_ref(), timeout);
            span.ended(if is_error(&answer) { "tool_error" } else { "ok" });
            gateway.handed_out(&own, answer, &went_on).await
        };
        self.run(caller, run, work).await
    }
}

fn describe(id: &str, app: &App) -> Value {
    let mut entry = json!({ "app_id": id });
    if !app.description.is_empty() {
        entry["description"] = json!(app.description);
    }
    if let Some(schema) = &app.input_schema {
        entry["input_schema"] = schema.clone();
    }
    match &app.kind {
        AppKind::Tool { tool } => entry["tool"] = json!(tool),
        AppKind::Workflow { steps, .. } => {
            entry["steps"] = json!(steps.iter().map(|step| &step.tool).collect::<Vec<_>>());
        }
    }
    entry
}

/// What a workflow answers: its output, or which step failed and why.
fn finish(
    id: &str,
    plan: &Plan,
    ended: &[Ended],
    given: &BTreeMap<String, Arc<Source>>,
    output: Option<&Value>,
    timeout: Duration,
) -> Value {
    let steps = || plan.actions().iter().zip(ended);
    if let Some((action, one)) = steps().find(|(action, one)| !one.succeeded() && !action.optional) {
        let error = error_of(&one.result);
        let why = error["message"].as_str().unwrap_or("it failed");
        let done: Vec<&str> =
            steps().filter(|(_, one)| one.succeeded()).map(|(a, _)| a.id.as_str()).collect();
        let code = if error["code"] == "timeout" || error["code"] == "cancelled" {
            Code::Timeout
        } else {
            Code::UpstreamError
        };
        let limit = if code == Code::Timeout {
            format!(" The limit of the whole app is {}.", humantime::format_duration(timeout))
        } else {
            String::new()
        };
        return Fault::new(
            code,
            format!("The app `{id}` stopped at the step `{}` ({}): {why}{limit}", action.id, one.name),
        )
        .details(json!({ "completed": done, "error": error }))
        .next("get_tool", json!({ "name": one.name }))
        .to_result();
    }
    let mut values = given.clone();
    for (action, one) in steps() {
        let source = if one.succeeded() { source_of(&one.result) } else { Source::default() };
        values.insert(action.id.clone(), Arc::new(source));
    }
    let last = plan.actions().last().and_then(|action| values.get(&action.id));
    let output = match output {
        None => Ok(last.map(|source| source.value.clone()).unwrap_or_default()),
        Some(output) => template::fill(output, &|name| match values.get(name) {
            Some(value) => Named::Value(value.clone()),
            None => Named::Unknown(values.keys().cloned().collect::<Vec<_>>().join(", ")),
        })
        .map(|filled| filled.value),
    };
    match output {
        Err(error) => Fault::new(
            Code::InvalidParams,
            format!("The steps of the app `{id}` ran, but its `output` cannot be filled: {error}."),
        )
        .to_result(),
        Ok(output) => {
            let mut answer = Map::new();
            answer.insert("app_id".into(), json!(id));
            answer.insert("output".into(), output);
            answer.insert("tool_calls".into(), json!(ended.iter().filter(|one| one.ran).count()));
            let failed: Map<String, Value> = steps()
                .filter(|(_, one)| !one.succeeded())
                .map(|(action, one)| (action.id.clone(), error_of(&one.result)))
                .collect();
            if !failed.is_empty() {
                answer.insert("failed_optional_steps".into(), Value::Object(failed));
            }
            text_result(Value::Object(answer).to_string())
        }
    }
}
