//! Apps: the entries of `[apps.*]`, each a server's tool, a workflow of tool calls, or a model with tools.

mod model;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Gateway,
    call::{Begun, text_result},
    faults::error_of,
    graph::{ActionResult, CONCURRENCY, PlanRun, SoFar, refused_plan, unknown},
    interrupt::Interrupt,
    run::{self, Run},
    session::Caller,
};
use crate::{
    config::{App, AppKind, Config, Step},
    downstream::ProgressSink,
    fault::{Code, Fault},
    jobs::Progress,
    name,
    results::{is_error, json_len, source_of, value_of},
    schema::Schema,
    template::{self, Named, Source},
    workflow::{INPUT, Plan, PlannedCall},
};

/// How long an app may take if neither the caller nor the configuration says, and at most.
const TIMEOUT: Duration = Duration::from_secs(120);
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The arguments of `call_app`.
#[derive(Debug, Default, serde::Deserialize)]
pub struct AppArguments {
    app_id: Option<String>,
    #[serde(default)]
    input: Value,
    timeout: Option<u64>,
}

/// One run of an app.
struct AppRun {
    id: String,
    input: Value,
    began: Instant,
    timeout: Duration,
}

/// An app in the list of apps.
#[derive(Serialize)]
struct ListedApp<'a> {
    app_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_schema: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
}

impl<'a> ListedApp<'a> {
    fn new(app_id: &'a str, app: &'a App) -> Self {
        let (tool, steps, model) = match &app.kind {
            AppKind::Tool { tool } => (Some(tool.as_str()), None, None),
            AppKind::Workflow { steps, .. } => {
                (None, Some(steps.iter().map(|step| step.tool.as_str()).collect()), None)
            }
            AppKind::Model(app) => (None, None, Some(app.model.name())),
        };
        let input_schema = app.input_schema.as_ref();
        Self { app_id, description: &app.description, input_schema, tool, steps, model }
    }
}

/// What an app gave.
#[derive(Serialize)]
struct AppAnswer<'a> {
    app_id: &'a str,
    output: Value,
    tool_calls: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repaired: Vec<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    failed_optional_steps: Map<String, Value>,
}

impl AppAnswer<'_> {
    fn into_result(self) -> Value {
        text_result(json!(self).to_string())
    }
}

impl Gateway {
    /// The `call_app` meta-tool.
    pub async fn call_app(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: AppArguments,
    ) -> Result<Value, Interrupt> {
        let config = self.config();
        let Some(id) = arguments.app_id.filter(|id| !id.trim().is_empty()) else {
            return Ok(text_result(list(&config).to_string()));
        };
        let Some((id, app)) = config.apps.get_key_value(id.trim()) else {
            return Err(unknown_app(&config, id.trim(), arguments.input).into());
        };
        let input = match &app.input_schema {
            Some(schema) => read_input(caller, id, schema, arguments.input)?,
            None => arguments.input,
        };
        let asked = arguments.timeout.map(Duration::from_secs).or(app.timeout);
        let timeout = asked.unwrap_or(TIMEOUT).clamp(Duration::from_secs(1), MAX_TIMEOUT);
        let run = AppRun { id: id.clone(), input, began: Instant::now(), timeout };
        match &app.kind {
            AppKind::Tool { tool } => self.call_tool_app(caller, run, tool).await,
            AppKind::Workflow { steps, output } => {
                self.call_workflow(caller, run, steps, output.clone()).await
            }
            AppKind::Model(of) => self.call_model(caller, run, of.clone()).await,
        }
    }

    async fn call_tool_app(
        self: &Arc<Self>,
        caller: &Caller,
        app: AppRun,
        tool: &str,
    ) -> Result<Value, Interrupt> {
        let (gate, tool) = self.find_tool(caller, tool).await?;
        // Text for a tool with one required param is that param.
        let input = match (app.input, tool.schema.parameters().as_slice()) {
            (Value::String(text), [first, rest @ ..])
                if rest.iter().all(|other| !other.required) && !text.trim_start().starts_with('{') =>
            {
                json!({ first.name: text })
            }
            (input, _) => input,
        };
        let prepared = self.prepare_tool(caller, (gate, tool.clone()), input.clone(), None).await?;
        let cancel = CancellationToken::new();
        let own = Caller { cancel: cancel.clone(), ..caller.clone() };
        let (gateway, token, id) = (self.clone(), cancel.clone(), app.id);
        let sink = ProgressSink::new(caller.progress.clone());
        let last = sink.clone();
        let progress: Progress = Arc::new(move || last.last());
        let run = Run { progress, began: app.began.into(), ..Run::new(format!("app {}", tool.full), cancel) };
        let went_on = run.went_on.clone();
        let work = async move {
            let begun = Begun { at: app.began, ..Begun::new(&own, &input) };
            let (called, repaired) = (prepared.tool.clone(), prepared.repaired.clone());
            let made = gateway.invoke(&own, prepared, Some(app.timeout), token, sink, &begun.span).await;
            gateway.record(&own, &called, &begun, json_len(&made.result), &made);
            if is_error(&made.result) {
                return made.result;
            }
            let output = value_of(&made.result);
            let failed_optional_steps = Map::new();
            let answer = AppAnswer { app_id: &id, output, tool_calls: 1, repaired, failed_optional_steps };
            run::handed_out(&gateway.kept, &own, answer.into_result(), &went_on).await
        };
        run.wait(&self.jobs, caller, work).await
    }

    async fn call_workflow(
        self: &Arc<Self>,
        caller: &Caller,
        app: AppRun,
        steps: &[Step],
        output: Option<Value>,
    ) -> Result<Value, Interrupt> {
        let calls = steps.iter().map(planned).collect();
        let plan = Arc::new(Plan::new(calls, &[INPUT]).map_err(|flaw| refused_plan(&flaw))?);
        for call in plan.calls() {
            self.find_tool(caller, &call.name).await?;
        }
        let cancel = CancellationToken::new();
        let span = caller.meta_span("call_app");
        let own = Caller { cancel: cancel.clone(), trace: span.parent(), ..caller.clone() };
        let gateway = self.clone();
        let so_far = SoFar::new(&plan);
        let seen = so_far.clone();
        let progress: Progress = Arc::new(move || Some(seen.counts()));
        let run =
            Run { progress, began: app.began.into(), ..Run::new(format!("app {}", app.id), cancel.clone()) };
        let went_on = run.went_on.clone();
        let work = async move {
            // A token of its own: running out of time is not being cancelled by the user.
            let limit = cancel.child_token();
            let over = limit.clone();
            let timer = tokio::spawn(async move {
                tokio::time::sleep(app.timeout).await;
                over.cancel();
            });
            let given = BTreeMap::from([(INPUT.to_string(), Arc::new(Source::from(app.input)))]);
            let run = PlanRun {
                plan: &plan,
                given: given.clone(),
                concurrency: CONCURRENCY,
                fail_fast: true,
                cancel: limit,
                so_far: &so_far,
            };
            let ended = gateway.run_plan(&own, run).await;
            timer.abort();
            let answer = finish(&app.id, &plan, &ended, given, output.as_ref(), app.timeout);
            span.ended(if is_error(&answer) { "tool_error" } else { "ok" });
            run::handed_out(&gateway.kept, &own, answer, &went_on).await
        };
        run.wait(&self.jobs, caller, work).await
    }
}

/// The list of apps.
fn list(config: &Config) -> Value {
    let listed: Vec<ListedApp<'_>> = config.apps.iter().map(|(id, app)| ListedApp::new(id, app)).collect();
    let mut answer = json!({ "apps": listed });
    if !config.left_out_apps.is_empty() {
        let left_out = config.left_out_apps.iter();
        answer["left_out"] = left_out.map(|(id, one)| json!({ "app_id": id, "why": one.why() })).collect();
    } else if config.apps.is_empty() {
        answer["hint"] = json!("No apps are configured. The user adds one as [apps.NAME] in servers.toml.");
    }
    answer
}

fn unknown_app(config: &Config, id: &str, input: Value) -> Fault {
    if let Some(left_out) = config.left_out_apps.get(id) {
        let message =
            format!("The app `{id}` cannot be used until the user corrects its entry. {}", left_out.why());
        return Fault::new(Code::NotFound, message);
    }
    let near = name::nearest(id, config.apps.keys().map(String::as_str), 3);
    let message = format!("There is no app `{id}`. call_app without `app_id` lists them.");
    let next = match near.first() {
        Some(first) => json!({ "app_id": first, "input": input }),
        None => json!({}),
    };
    Fault::new(Code::NotFound, message).next("call_app", next).suggest(near)
}

/// The input of an app, read as leniently as the params of a tool.
fn read_input(caller: &Caller, id: &str, schema: &Value, input: Value) -> Result<Value, Fault> {
    let schema = Schema::new(schema.clone());
    let reading = schema.read(input).map_err(|misfit| {
        let example = json!({ "app_id": id, "input": misfit.example });
        let message = format!("The input does not fit the app `{id}`: {}.", misfit.faults.join("; "));
        Fault::new(Code::InvalidParams, message)
            .details(json!({ "corrected_call": { "tool": "call_app", "arguments": example } }))
            .next("call_app", json!({}))
    })?;
    let mut changes = reading.repaired;
    let unknown = schema.unknown(&reading.params);
    changes.extend(unknown.iter().map(|key| format!("the app does not know `{key}`")));
    if !changes.is_empty() {
        caller.session.notify(json!({ "kind": "input_repaired", "app": id, "changes": changes }));
    }
    Ok(Value::Object(reading.params))
}

fn planned(step: &Step) -> PlannedCall {
    PlannedCall {
        id: step.id.clone(),
        name: step.tool.clone(),
        params: Value::Object(step.params.clone()),
        after: step.after.clone(),
        timeout_ms: None,
        select: None,
        optional: step.optional,
    }
}

/// What a workflow answers: its output, or which step failed and why.
fn finish(
    id: &str,
    plan: &Plan,
    ended: &[ActionResult],
    given: BTreeMap<String, Arc<Source>>,
    output: Option<&Value>,
    timeout: Duration,
) -> Value {
    let steps = || plan.calls().iter().zip(ended);
    if let Some((call, one)) = steps().find(|(call, one)| !one.succeeded() && !call.optional) {
        let done = steps().filter(|(_, one)| one.succeeded()).map(|(call, _)| call.id.as_str()).collect();
        return stopped(id, &call.id, one, done, timeout).to_result();
    }
    let mut values = given;
    values.extend(steps().map(|(call, one)| {
        let source = if one.succeeded() { source_of(&one.result) } else { Source::default() };
        (call.id.clone(), Arc::new(source))
    }));
    let output = match output {
        None => {
            let last = plan.calls().last().and_then(|call| values.get(&call.id));
            Ok(last.map(|source| source.value.clone()).unwrap_or_default())
        }
        Some(output) => {
            let lookup =
                |name: &str| values.get(name).cloned().map_or_else(|| unknown(&values), Named::Value);
            template::fill(output, &lookup).map(|filled| filled.value)
        }
    };
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            let message =
                format!("The steps of the app `{id}` ran, but its `output` cannot be filled: {error}.");
            return Fault::new(Code::InvalidParams, message).to_result();
        }
    };
    let failed_optional_steps = steps()
        .filter(|(_, one)| !one.succeeded())
        .map(|(call, one)| (call.id.clone(), error_of(&one.result)))
        .collect();
    let tool_calls = ended.iter().filter(|one| one.ran).count();
    AppAnswer { app_id: id, output, tool_calls, repaired: Vec::new(), failed_optional_steps }.into_result()
}

/// Why a workflow stopped at a step.
fn stopped(id: &str, step: &str, one: &ActionResult, done: Vec<&str>, timeout: Duration) -> Fault {
    let error = error_of(&one.result);
    let why = error["message"].as_str().unwrap_or("it failed");
    let timed_out = error["code"] == "timeout" || error["code"] == "cancelled";
    let (code, limit) = match timed_out {
        true => {
            let limit = humantime::format_duration(timeout);
            (Code::Timeout, format!(" The limit of the whole app is {limit}."))
        }
        false => (Code::UpstreamError, String::new()),
    };
    Fault::new(code, format!("The app `{id}` stopped at the step `{step}` ({}): {why}{limit}", one.name))
        .details(json!({ "completed": done, "error": error }))
        .next("get_tool", json!({ "name": one.name }))
}
