//! Apps: the entries of `[apps.*]`, each a server's tool, a workflow of tool calls, or a model with tools.

mod model;
pub(super) mod parked;
pub(super) mod script;
mod workflow;

use self::{parked::ParkedFlows, script::EndedScripts};

use std::{
    borrow::Cow,
    future::ready,
    path::PathBuf,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::{Duration, Instant},
};

use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use nonet_api::notice::Notice;
use nonet_base::{clock::millis, text::clip, turns::Turns};
use nonet_config::{APPS_DEEP, App, AppKind, Config, Step, StepKind};
use nonet_schema::{Schema, from_text};
use nonet_servers::catalog::{APPS, EntryKind, guide::is_named};
use nonet_text::{
    fault::{Fault, FaultCode},
    name,
    results::{is_error, value_of},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Asking, Calls, Find, Keeping, Observing,
    call::{
        AnswerWait, CallInFlight, CallParams, CallPlan, RecordedCall, Unready, in_text, text_result,
        waits_for_user,
    },
    graph::{ActionResult, OpenQuestion, RunLog},
    interrupt::Interrupt,
};
use crate::gate::{Gate, may_not_be_used};
use nonet_state::{
    faults::error_of,
    grants::RunApproval,
    publisher::Publisher,
    questions::{ApprovalRequest, CallRequest, HeldCall},
    servers::Servers,
    session::Caller,
};

/// How long an app may take by default, and at most.
const TIMEOUT: Duration = Duration::from_secs(120);
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The arguments of `call_app`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub struct AppArguments {
    app_id: Option<String>,
    #[serde(default)]
    input: Value,
    timeout: Option<u64>,
    /// The token of the question that the app has asked, to continue the app.
    #[serde(skip)]
    token: Option<String>,
    #[serde(skip)]
    answer: Option<Value>,
    /// The journal of the step that calls the app.
    #[serde(skip)]
    log: Option<RunLog>,
    /// How the app returns its answer.
    #[serde(skip)]
    handing: AnswerMode,
    /// Where an inner app leaves its question.
    #[serde(skip)]
    waiting: Option<InnerApproval>,
}

/// The question of an inner app, which waits for the user together with the app around it.
#[derive(Clone, Debug, Default)]
pub(super) struct InnerApproval(Arc<OnceLock<RunApproval>>);

impl InnerApproval {
    /// Returns the question, if the app waits.
    pub(super) fn question(&self) -> Option<&RunApproval> {
        self.0.get()
    }

    /// Leaves the question of the step that waits. Returns the result of the app.
    fn leave(&self, results: Vec<Option<ActionResult>>, at: usize) -> Value {
        let open = results.into_iter().nth(at).flatten().and_then(|one| one.open);
        match open.map(|open| *open) {
            Some(OpenQuestion::Approve(asked)) => self.put(asked),
            // An app that asks is not run inside a run or another app.
            _ => Fault::new(FaultCode::Internal, "A step waits for the user without a question.").to_result(),
        }
    }

    fn put(&self, asked: RunApproval) -> Value {
        let fault = waits_for_user(&asked);
        let _ = self.0.set(asked);
        fault.to_result()
    }
}

/// How an app called by `execute_tool` returns its answer.
#[derive(Clone, Debug, Default)]
pub(super) struct AnswerMode {
    /// Whether the app was launched in the background.
    pub background: bool,
    /// A jq filter for the answer.
    pub select: Option<String>,
}

impl AppArguments {
    /// Adds the token of a question that the app has asked, and the user's answer.
    pub fn going_on(self, token: Option<Value>, answer: Option<Value>) -> Self {
        let token = token.map(|token| token.as_str().map_or_else(|| token.to_string(), String::from));
        Self { token, answer, ..self }
    }

    /// Creates the arguments that run this app with this input.
    pub(super) fn new(app_id: String, input: Value) -> Self {
        Self { app_id: Some(app_id), input, ..Self::default() }
    }

    /// Sets how the answer is returned, and a limit if there is one.
    pub(super) fn handed_out(self, handing: AnswerMode, limit: Option<Duration>) -> Self {
        let timeout = limit.map(|limit| millis(limit).div_ceil(1_000)).or(self.timeout);
        Self { handing, timeout, ..self }
    }

    /// Creates the arguments for a step of a workflow. Without a limit, the limit of the workflow applies.
    pub(super) fn of_step(
        app: &str,
        input: Value,
        timeout: Option<Duration>,
        log: Option<RunLog>,
        waiting: InnerApproval,
    ) -> Self {
        let timeout = Some(millis(timeout.unwrap_or(MAX_TIMEOUT)).div_ceil(1_000));
        let waiting = Some(waiting);
        Self { app_id: Some(app.into()), input, timeout, log, waiting, ..Self::default() }
    }
}

/// Apps and plans: what makes several calls for one.
pub struct Apps {
    pub(crate) servers: Arc<Servers>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) keeping: Arc<Keeping>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) asking: Arc<Asking>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) find: Arc<Find>,
    /// Workflows that wait for their user's answer.
    pub(crate) parked: ParkedFlows,
    /// Scripts that run, wait for their user's answer, or have stopped early.
    pub(crate) scripts: ParkedFlows,
    /// The scripts that have ended in this process, the last ones of all clients.
    pub(crate) ended_scripts: EndedScripts,
    /// The turns in which scripts run.
    pub(crate) script_turns: Arc<Turns>,
    /// Nonet's own executable, which runs scripts.
    pub(crate) executable: Option<PathBuf>,
}

struct AppRun {
    id: String,
    input: Value,
    began: Instant,
    timeout: Duration,
    log: Option<RunLog>,
    handing: AnswerMode,
    waiting: Option<InnerApproval>,
}

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
    script: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
}

impl<'a> ListedApp<'a> {
    fn new(app_id: &'a str, app: &'a App) -> Self {
        let mut listed = Self {
            app_id,
            description: &app.description,
            input_schema: app.input_schema.as_ref(),
            tool: None,
            steps: None,
            script: None,
            model: None,
        };
        match &app.kind {
            AppKind::Tool { tool } => listed.tool = Some(tool),
            AppKind::Workflow { steps, .. } => listed.steps = Some(steps.iter().map(Step::called).collect()),
            AppKind::Script { file } => listed.script = file.file_name().map(|name| name.to_string_lossy()),
            AppKind::Model(app) => listed.model = Some(app.model.name()),
        }
        listed
    }
}

#[derive(Serialize)]
struct AppAnswer<'a> {
    app_id: &'a str,
    output: Value,
    tool_calls: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repaired: Vec<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    failed_optional_steps: Map<String, Value>,
    /// How many items of a step's list failed or were left out.
    #[serde(skip_serializing_if = "Map::is_empty")]
    items: Map<String, Value>,
    /// The steps that their `when` has skipped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<&'a str>,
}

impl AppAnswer<'_> {
    fn into_result(self) -> Value {
        text_result(json!(self).to_string())
    }
}

impl Apps {
    /// Implements the `call_app` meta-tool.
    pub async fn call_app(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: AppArguments,
    ) -> Result<Value, Interrupt> {
        if let Some(token) = &arguments.token {
            return Box::pin(self.go_on(caller, token, arguments.answer.as_ref(), None)).await;
        }
        let given = arguments.app_id.map(|id| own_id(&self.servers.config(), &id));
        let arguments = AppArguments { app_id: given.clone(), ..arguments };
        let arguments = self.filled(caller, arguments).await?;
        let answer = self.run_app(caller, arguments).await?;
        if let Some(id) = given.filter(|_| !is_error(&answer)) {
            self.observing.guided(caller, EntryKind::App, &id);
        }
        Ok(answer)
    }

    /// Inserts the kept results that an app's input refers to.
    async fn filled(&self, caller: &Caller, arguments: AppArguments) -> Result<AppArguments, Fault> {
        let filled = match self.keeping.kept.fill(&caller.owner(), &arguments.input).await {
            Ok(Some(filled)) => filled,
            Ok(None) => return Ok(arguments),
            Err(fault) => {
                let name = name::full_name(APPS, arguments.app_id.as_deref().unwrap_or_default());
                if let Some(call) = self.observing.audit_app(caller, &name, &arguments.input) {
                    let _ = call.end(fault.code.as_str()).await;
                }
                return Err(fault);
            }
        };
        let config = self.servers.config();
        let app = arguments.app_id.as_deref().and_then(|id| config.apps.get(id.trim()));
        let (input, changes) = match app.and_then(|app| app.input_schema.clone()) {
            Some(schema) => in_text(&Schema::new(schema), filled),
            None => (filled.value, Vec::new()),
        };
        if !changes.is_empty() {
            let app = arguments.app_id.clone();
            caller.session.notify(Notice::InputRepaired { app, skill: None, changes });
        }
        Ok(AppArguments { input, ..arguments })
    }

    /// Runs an app with its own line in the audit log, beside the lines of its calls, or lists all apps.
    /// Expects kept results to be inserted in the input already. Boxed, because an app may run inside another
    /// app.
    pub(super) fn run_app<'a>(
        self: &'a Arc<Self>,
        caller: &'a Caller,
        arguments: AppArguments,
    ) -> BoxFuture<'a, Result<Value, Interrupt>> {
        let run = async move {
            let id = arguments.app_id.as_deref().map(str::trim).filter(|id| !id.is_empty());
            let call = id.and_then(|id| {
                self.observing.audit_app(caller, &name::full_name(APPS, id), &arguments.input)
            });
            let answer = self.run_one_app(caller, arguments).await;
            if let Some(call) = call {
                Observing::end_audited(call, outcome_of(&answer)).await?;
            }
            answer
        };
        run.boxed()
    }

    async fn run_one_app(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: AppArguments,
    ) -> Result<Value, Interrupt> {
        let config = self.servers.config();
        let Some(id) = arguments.app_id.filter(|id| !id.trim().is_empty()) else {
            return Ok(text_result(list(&config, &Gate::of(&self.publisher, &caller.session)).to_string()));
        };
        let Some((id, app)) = config.apps.get_key_value(id.trim()) else {
            return Err(unknown_app(&config, id.trim(), arguments.input).into());
        };
        self.may_run(caller, id, app)?;
        let input = match &app.input_schema {
            Some(schema) => read_input(caller, id, schema, arguments.input)?,
            None => read_freely(caller, id, app, arguments.input),
        };
        let asked = arguments.timeout.map(Duration::from_secs).or(app.timeout);
        let timeout = asked.unwrap_or(TIMEOUT).clamp(Duration::from_secs(1), MAX_TIMEOUT);
        let AppArguments { log, handing, waiting, .. } = arguments;
        let run = AppRun { id: id.clone(), input, began: Instant::now(), timeout, log, handing, waiting };
        let caller = &Caller { within: inside(caller, id), ..caller.clone() };
        match &app.kind {
            AppKind::Tool { tool } => self.call_tool_app(caller, run, tool).await,
            AppKind::Workflow { steps, output } => {
                self.call_workflow(caller, run, steps, output.clone()).await
            }
            AppKind::Script { file } => self.call_script(caller, run, file).await,
            AppKind::Model(of) => self.call_model(caller, run, of.clone()).await,
        }
    }

    async fn call_tool_app(
        self: &Arc<Self>,
        caller: &Caller,
        app: AppRun,
        tool: &str,
    ) -> Result<Value, Interrupt> {
        let (gate, tool) = self.calls.find_tool(caller, tool).await?;
        if tool.kind == EntryKind::App {
            let inner = AppArguments::new(tool.name.to_string(), app.input)
                .handed_out(app.handing, Some(app.timeout));
            return self.run_app(caller, AppArguments { waiting: app.waiting, ..inner }).await;
        }
        // Text for a tool with one required param becomes that param.
        let input = match (app.input, tool.schema.parameters().as_slice()) {
            (Value::String(text), [first, rest @ ..])
                if rest.iter().all(|other| !other.required) && !text.trim_start().starts_with('{') =>
            {
                json!({ first.name: text })
            }
            (input, _) => input,
        };
        // Checked before an approval is consumed.
        let background = app.handing.background;
        let admission = Some(self.calls.admit(caller, background)?);
        let full = tool.full.clone();
        let asks = |asked: ApprovalRequest, _| {
            if app.waiting.is_some() {
                // The run around the app may have further calls.
                let asked = self.asking.ask_in_run(caller, None, asked.of_calls(1, true, &[]));
                return asked.map_err(Unready::Open).boxed();
            }
            let held = HeldCall::App(Box::new(CallRequest {
                name: app.id.clone(),
                params: input.clone(),
                timeout: Some(app.timeout),
                background: app.handing.background,
                select: app.handing.select.clone(),
                of_ui: false,
                verbatim: false,
            }));
            ready(Err(self.asking.questions.hold(caller, asked, held).into())).boxed()
        };
        let (params, found) = (CallParams::Literal(&input), Some(Ok((gate, tool))));
        let mut plan = CallPlan { begun: None, name: &full, found, params, select: None, asks: &asks };
        let prepared = match (self.calls.ready(caller, &mut plan).await, app.waiting.clone()) {
            (Err(Unready::Open(asked)), Some(waiting)) => return Ok(waiting.put(*asked)),
            (prepared, _) => prepared.map_err(Fault::from)?,
        };
        let begun = CallInFlight { at: app.began, ..self.observing.begin(caller, &full, &input) };
        let label = format!("app {full}").into();
        let timeout = Some(app.timeout);
        let wait = AnswerWait { timeout, background, admission, label, is_verbatim: true };
        let (id, handing) = (app.id, app.handing);
        let answer =
            async move |calls: Arc<Calls>, own: Caller, mut ended: RecordedCall, went_on: Arc<AtomicBool>| {
                if ended.made.result.is_error() {
                    return ended.made.result;
                }
                let answer = AppAnswer {
                    app_id: &id,
                    output: value_of(ended.made.result.tree().await),
                    tool_calls: 1,
                    repaired: ended.repaired,
                    failed_optional_steps: Map::new(),
                    items: Map::new(),
                    skipped: Vec::new(),
                };
                calls.hand_out(&own, answer.into_result(), handing.select.as_deref(), &went_on).await
            };
        Ok(self.calls.run_for_client(caller, begun, prepared, wait, answer).await?.into_tree().await)
    }

    /// Refuses an app that a rule denies to the caller, or that is nested in itself or too deeply. The
    /// configuration is checked for nested apps when it is loaded, but a tool's name may also lead to an app.
    fn may_run(&self, caller: &Caller, id: &str, app: &App) -> Result<(), Fault> {
        if let Some(rule) = Gate::of(&self.publisher, &caller.session).kept_from(EntryKind::App, id) {
            return Err(may_not_be_used(&name::full_name(APPS, id), &rule).next("call_app", json!({})));
        }
        let within = &caller.within;
        let refused = |why: String| {
            Err(Fault::new(FaultCode::InvalidParams, format!("The app `{id}` was not run: {why}")))
        };
        let path = || within.iter().map(|app| &**app).chain([id]).collect::<Vec<_>>().join(" -> ");
        if within.iter().any(|outer| **outer == *id) {
            return refused(format!("it would run inside itself ({}).", path()));
        }
        if within.len() >= APPS_DEEP {
            return refused(format!("apps are nested more than {APPS_DEEP} deep ({}).", path()));
        }
        let asks = match &app.kind {
            AppKind::Workflow { steps, .. } => steps.iter().any(|step| matches!(step.kind, StepKind::Ask(_))),
            AppKind::Tool { .. } | AppKind::Script { .. } | AppKind::Model(_) => false,
        };
        match asks && (!within.is_empty() || caller.run.is_some()) {
            true => refused("it asks the user, which only an app that is called directly can do.".into()),
            false => Ok(()),
        }
    }
}

/// Returns the outcome of an app for the audit log. An app that continues as a task counts as `ok`.
fn outcome_of(answer: &Result<Value, Interrupt>) -> &'static str {
    match answer {
        Ok(result) if is_error(result) => {
            let code = error_of(result)["code"].as_str().and_then(FaultCode::of);
            code.map_or("tool_error", FaultCode::as_str)
        }
        Ok(_) | Err(Interrupt::Task(_)) => "ok",
        Err(Interrupt::Fault(fault)) => fault.code.as_str(),
        Err(Interrupt::Refused(_)) => "tool_error",
    }
}

/// Resolves an app's name, or its name in the catalogue (`apps.ID`), to its id.
pub(super) fn own_id(config: &Config, given: &str) -> String {
    let given = given.trim();
    let is_meant = |id: &&String| is_named(EntryKind::App, id, given);
    let meant = config.apps.keys().find(is_meant).filter(|_| !config.apps.contains_key(given));
    meant.map_or(given, String::as_str).into()
}

/// Returns the apps around the calls of this app.
fn inside(caller: &Caller, id: &str) -> Vec<Arc<str>> {
    caller.within.iter().cloned().chain([id.into()]).collect()
}

/// Lists the apps.
fn list(config: &Config, gate: &Gate) -> Value {
    let apps = config.apps.iter().filter(|(id, _)| gate.kept_from(EntryKind::App, id).is_none());
    let listed: Vec<ListedApp<'_>> = apps.map(|(id, app)| ListedApp::new(id, app)).collect();
    let mut answer = json!({ "apps": listed });
    if !config.left_out_apps.is_empty() {
        let left_out = config.left_out_apps.iter();
        answer["left_out"] = left_out.map(|(id, one)| json!({ "app_id": id, "why": one.why() })).collect();
    } else if config.apps.is_empty() {
        answer["hint"] = json!("No apps are configured. The user adds one as [apps.NAME] in servers.toml.");
    }
    answer
}

pub(super) fn unknown_app(config: &Config, id: &str, input: Value) -> Fault {
    if let Some(left_out) = config.left_out_apps.get(id) {
        let message =
            format!("The app `{id}` cannot be used until the user corrects its entry. {}", left_out.why());
        return Fault::new(FaultCode::NotFound, message);
    }
    let near = name::nearest(id, config.apps.keys().map(String::as_str), 3);
    let message = format!("There is no app `{}`. call_app without `app_id` lists them.", clip(id, 100));
    let next = match near.first() {
        Some(first) => json!({ "app_id": first, "input": input }),
        None => json!({}),
    };
    Fault::new(FaultCode::NotFound, message).next("call_app", next).suggest(near)
}

/// Reads JSON in a string as the input of a workflow or script that declares none: it takes members of it.
fn read_freely(caller: &Caller, id: &str, app: &App, input: Value) -> Value {
    let Value::String(text) = &input else { return input };
    let is_workflow =
        matches!(app.kind, AppKind::Workflow { .. } | AppKind::Script { .. }) && !text.trim().is_empty();
    match from_text(text).map(|(inner, _)| inner).filter(|inner| is_workflow && inner.is_object()) {
        Some(inner) => {
            let changes = vec!["`input` was JSON in a string".into()];
            caller.session.notify(Notice::InputRepaired { app: Some(id.to_string()), skill: None, changes });
            inner
        }
        None => input,
    }
}

/// Reads the input of an app as leniently as a tool's params.
pub(super) fn read_input(caller: &Caller, id: &str, schema: &Value, input: Value) -> Result<Value, Fault> {
    let schema = Schema::new(schema.clone());
    let reading = schema.read(input).map_err(|misfit| {
        let example = json!({ "app_id": id, "input": misfit.example });
        let message = format!("The input does not fit the app `{id}`: {}.", misfit.faults.join("; "));
        Fault::new(FaultCode::InvalidParams, message)
            .details(json!({ "corrected_call": { "tool": "call_app", "arguments": example } }))
            .next("call_app", json!({}))
    })?;
    let mut changes = reading.repaired;
    let unknown = schema.unknown(&reading.params);
    changes.extend(unknown.iter().map(|key| format!("the app does not declare `{key}`")));
    if !changes.is_empty() {
        caller.session.notify(Notice::InputRepaired { app: Some(id.to_string()), skill: None, changes });
    }
    Ok(Value::Object(reading.params))
}
