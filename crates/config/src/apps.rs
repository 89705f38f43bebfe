//! `[apps.ID]`: a tool under another name, a workflow of steps, a script, or a model with tools.
//!
//! [`AppTable`] is the table as written and the source of its JSON Schema; [`App`] is the checked form.
//! `check` lets [`crate::workflow`] check the steps.

use std::{path::PathBuf, time::Duration};

use nonet_text::fault::FaultCode;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Globs, Secret, schema::table_or_word, values::time};
use crate::workflow::{FILTER, OnError, Retry};

/// How many items of a `for_each` run at a time by default.
pub const ITEMS_AT_A_TIME: usize = 8;
/// The only text allowed for `model`.
const CLIENT: &str = "client";

/// An entry of `[apps.ID]`, run by `call_app`.
#[derive(Clone, Debug)]
pub struct App {
    /// Its purpose, shown in the list of apps.
    pub description: String,
    /// The JSON Schema of its input. None: any object.
    pub input_schema: Option<Value>,
    /// The default time limit of a run.
    pub timeout: Option<Duration>,
    /// What the app runs.
    pub kind: AppKind,
}

/// What an app runs.
#[derive(Clone, Debug)]
pub enum AppKind {
    /// One tool, called with the app's input.
    Tool {
        /// The tool, in any accepted form of its name.
        tool: String,
    },
    /// Steps that pass values to each other.
    Workflow {
        /// The steps as written: ids are unique, and `after` and templates form no cycle.
        steps: Vec<Step>,
        /// A template (a text, or a table of texts) of the output. None: the last step's value.
        output: Option<Value>,
    },
    /// JavaScript that calls tools.
    Script {
        /// The file; read at each run.
        file: PathBuf,
    },
    /// A model that calls tools until it has an answer.
    Model(ModelApp),
}

/// A model and its permissions.
#[derive(Clone, Debug)]
pub struct ModelApp {
    /// Where the model is.
    pub model: AppModel,
    /// The model's instructions before the input.
    pub system: String,
    /// Patterns on full names: the tools that the model may call.
    pub allowed_tools: Globs,
    /// How many times the model may answer.
    pub max_turns: usize,
    /// The most tokens of one answer.
    pub max_tokens: Option<u32>,
}

/// Where the model of an app is.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum AppModel {
    /// The client's own model, by sampling. Holds the word `client`.
    Client(String),
    /// An endpoint for chat completions.
    Endpoint(ModelEndpoint),
}

impl AppModel {
    /// Returns the model's name in the list of apps.
    pub fn name(&self) -> &str {
        match self {
            Self::Client(word) => word,
            Self::Endpoint(endpoint) => &endpoint.name,
        }
    }
}

/// An endpoint that speaks OpenAI's chat completions.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelEndpoint {
    /// The address of the endpoint, up to `/chat/completions`.
    #[schemars(extend("format" = "http-url"), example = &"https://api.openai.com/v1")]
    pub base_url: String,
    /// The name of the model at the endpoint.
    #[schemars(length(min = 1), example = &"gpt-5-mini")]
    pub name: String,
    /// The key, sent as a bearer token to `base_url` and nowhere else.
    #[schemars(with = "Option<String>", length(min = 1), extend("format" = "header-value"))]
    #[schemars(example = &"${OPENAI_API_KEY}")]
    pub api_key: Option<Secret>,
}

/// Checks the text of `model`.
pub(super) fn model_word(text: &str) -> Result<(), String> {
    match text == CLIENT {
        true => Ok(()),
        false => Err("is not a model; the only valid string is `client`".into()),
    }
}

fn model_schema(generator: &mut SchemaGenerator) -> Schema {
    let example = json!({ "base_url": "https://api.openai.com/v1", "name": "gpt-5-mini", "api_key": "${OPENAI_API_KEY}" });
    table_or_word::<ModelEndpoint>(generator, ["object", "string"], "app-model", example)
}

/// One step of a workflow.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Its id in `after` and in templates.
    pub id: String,
    /// What it does.
    pub kind: StepKind,
    /// The steps that must finish first.
    pub after: Vec<String>,
    /// A jq filter over `{input, steps}` that decides whether the step runs.
    pub when: Option<String>,
    /// The list whose items the step runs for.
    pub for_each: Option<ForEach>,
    /// A jq filter on its value.
    pub select: Option<String>,
    /// How long one call may take.
    pub timeout: Option<Duration>,
    /// Whether the workflow continues if the step fails.
    pub optional: bool,
}

/// What a step does.
#[derive(Clone, Debug, Serialize)]
pub enum StepKind {
    /// Calls a tool.
    Tool {
        /// The tool, in any accepted form of its name.
        tool: String,
        /// Its params, with templates.
        params: Value,
        /// When to retry a failed call.
        retry: Option<RetryRule>,
    },
    /// Runs another app.
    App {
        /// Its id.
        app: String,
        /// Its input, with templates.
        input: Value,
    },
    /// Asks the user.
    Ask(Ask),
    /// Computes a value with a jq filter over `{input, steps}`.
    Filter(String),
}

/// The list of a step that runs once per item.
#[derive(Clone, Debug, Serialize)]
pub struct ForEach {
    /// An array, or a template of one.
    pub list: Value,
    /// How many items run at a time.
    pub max_concurrency: usize,
    /// What happens if an item fails.
    pub on_error: OnError,
}

impl Step {
    /// Returns the called tool or app, or what the step does instead.
    pub fn called(&self) -> &str {
        match &self.kind {
            StepKind::Tool { tool, .. } => tool,
            StepKind::App { app, .. } => app,
            StepKind::Ask(_) => "ask_user",
            StepKind::Filter(_) => FILTER,
        }
    }
}

/// One step of a workflow, as written: it calls a `tool`, runs another `app`, asks the user (`ask`), or
/// computes a value (`filter`).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StepTable {
    /// Its name in `after` and in templates. Left out: `step1`, `step2` and so on by position.
    #[schemars(extend("format" = "step-id", "default" = null), example = &"fetch")]
    pub id: String,
    /// The tool, in any form a tool name is taken in.
    #[schemars(length(min = 1), example = &"server.tool")]
    pub tool: Option<String>,
    /// The arguments; texts in them may be templates (`{{input.city}}`, `{{step1.rows.0}}`).
    #[schemars(example = json!({ "text": "{{input.text}}" }))]
    pub params: Map<String, Value>,
    /// Another app, instead of a tool.
    #[schemars(length(min = 1), example = &"report")]
    pub app: Option<String>,
    /// The input of that app, with templates.
    #[schemars(extend("type" = ["string", "object", "array", "number", "boolean"]), example = json!({ "city": "{{input.city}}" }))]
    pub input: Option<Value>,
    /// A question to the user, instead of a tool. The step's value is the answer: `{{ID.answer}}`.
    #[schemars(example = json!({ "question": "Which one?", "choices": ["red", "blue"] }))]
    pub ask: Option<Ask>,
    /// A jq filter over `{input, steps}`, instead of a tool: its output is the step's value. It waits for the
    /// steps that it names.
    #[schemars(extend("format" = "jq-filter"), example = &"[.steps.step1[] | .price * .count] | add")]
    pub filter: Option<String>,
    /// Steps that must be done before this one. A template or a `when` that names a step waits for it anyway.
    #[schemars(example = json!(["step1"]))]
    pub after: Vec<String>,
    /// A jq filter over `{input, steps}`. Does it give only `false`, `null` and empty lists, or nothing, the
    /// step is skipped, and its value is `null`. `.steps` has the steps that this one waits for. With
    /// `for_each`, a filter that reads `.item` decides for each item.
    #[schemars(extend("format" = "jq-filter"), example = &".steps.step1.total > 0")]
    pub when: Option<String>,
    /// A template of a list: the step is done for each item, `{{item}}` at `{{index}}` (from 0), and its
    /// value is the list of the values.
    #[schemars(extend("type" = ["string", "array"]), example = &"{{step1.rows}}")]
    pub for_each: Option<Value>,
    /// How many items are done at a time. Calls that change something go one at a time anyway.
    #[schemars(range(min = 1, max = 50))]
    pub max_concurrency: Option<usize>,
    /// `stop`: an item that fails stops the step. `keep`: it is `{error}` in its place.
    pub on_error: Option<OnError>,
    /// Makes a failed call again. Only for tools that their server marks read-only or idempotent.
    #[schemars(example = json!({ "times": 3, "wait": "1s" }))]
    pub retry: Option<RetryRule>,
    /// A jq filter on the step's value; with `for_each`, on the list.
    #[schemars(extend("format" = "jq-filter"), example = &"map(.name)")]
    pub select: Option<String>,
    /// How long one call may take, or how long a question stays open.
    #[serde(deserialize_with = "time::option::deserialize")]
    #[schemars(schema_with = "time::schema")]
    pub timeout: Option<Duration>,
    /// `true`: a failure of this step, or a refusal of the user, does not fail the workflow.
    pub optional: bool,
}

/// When a failed call is made again.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryRule {
    /// How often at most.
    #[schemars(range(min = 1, max = 10))]
    pub times: usize,
    /// The pause before the first time; each further one is twice as long. What the fault asks for is kept
    /// too.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub wait: Duration,
    /// The codes of faults after which the call is made again.
    #[schemars(schema_with = "codes")]
    pub on: Vec<String>,
}

fn codes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "items": { "type": "string", "format": "fault-code", "examples": ["timeout"] },
        "examples": [["server_down", "timeout"]],
    })
}

impl Default for RetryRule {
    fn default() -> Self {
        let on = FaultCode::ALL.into_iter().filter(|code| code.retryable());
        let on = on.map(|code| code.as_str().into()).collect();
        Self { times: Retry::TIMES, wait: Retry::WAIT, on }
    }
}

/// A question to the user. Texts in it may be templates.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ask {
    /// The question.
    #[schemars(length(min = 1), example = &"Which of these?")]
    pub question: String,
    /// What the user can choose from: a list, or a template of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = ["array", "string"]), example = json!(["red", "blue"]))]
    pub choices: Option<Value>,
    /// Whether several choices may be taken.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_multiple: bool,
    /// A flat JSON Schema of the fields to fill in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = json!({ "type": "object", "properties": { "city": { "type": "string" } } }))]
    pub form: Option<Map<String, Value>>,
    /// Text to approve or edit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"{{draft}}")]
    pub content: Option<String>,
}

impl StepTable {
    /// Returns the checked form. `check` has made sure that there is exactly one of `tool`, `app`, `ask` and
    /// `filter`.
    fn into_step(self, position: usize) -> Step {
        let kind = match (self.tool, self.app, self.ask, self.filter) {
            (_, Some(app), ..) => StepKind::App { app, input: self.input.unwrap_or_default() },
            (_, _, Some(ask), _) => StepKind::Ask(ask),
            (.., Some(filter)) => StepKind::Filter(filter),
            (tool, ..) => StepKind::Tool {
                tool: tool.unwrap_or_default(),
                params: Value::Object(self.params),
                retry: self.retry,
            },
        };
        let (max_concurrency, on_error) = (self.max_concurrency, self.on_error.unwrap_or_default());
        let for_each = self.for_each.map(|list| ForEach {
            list,
            max_concurrency: max_concurrency.unwrap_or(ITEMS_AT_A_TIME),
            on_error,
        });
        Step {
            id: if self.id.is_empty() { default_id(position) } else { self.id },
            kind,
            after: self.after,
            when: self.when,
            for_each,
            select: self.select,
            timeout: self.timeout,
            optional: self.optional,
        }
    }
}

/// Returns the id of a step without one, by its position from 0.
pub(super) fn default_id(position: usize) -> String {
    format!("step{}", position + 1)
}

/// An app as written: a tool (`tool`), a workflow (`steps`), a script (`script`) or a model (`model`).
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AppTable {
    /// What the app does; shown in the list of apps.
    #[schemars(example = &"Collects the changes of the week")]
    pub description: String,
    /// The JSON Schema of the app's input.
    #[schemars(with = "Option<Map<String, Value>>")]
    #[schemars(example = json!({ "type": "object" }))]
    pub input_schema: Option<Value>,
    /// The one tool that the app runs.
    #[schemars(length(min = 1), example = &"server.tool")]
    pub tool: Option<String>,
    /// The steps of a workflow, `[[apps.ID.steps]]` each.
    #[schemars(example = json!([{ "tool": "server.tool" }]))]
    pub steps: Vec<StepTable>,
    /// A template of the workflow's output: a text, or a table of texts.
    #[schemars(extend("type" = ["string", "object", "array"]), example = &"{{step2}}")]
    pub output: Option<Value>,
    /// A file of JavaScript that calls tools, as `gateway.run_script` runs it: absolute, with `~/`, or relative
    /// to this file. It is read at each run.
    #[schemars(with = "Option<String>", length(min = 1), example = &"scripts/report.js")]
    pub script: Option<PathBuf>,
    /// A model that works on the input with tools: an endpoint that speaks OpenAI's chat completions, or
    /// `"client"` for the client's own model (sampling).
    #[schemars(schema_with = "model_schema")]
    pub model: Option<AppModel>,
    /// What the model is told before the input.
    #[schemars(example = &"You answer in one sentence.")]
    pub system: String,
    /// The tools that the model may call: patterns on full names (`server.tool`). Tools that need approval
    /// are refused.
    #[schemars(example = json!(["files.read_*"]))]
    pub allowed_tools: Globs,
    /// How many times the model may answer; each answer may call several tools.
    #[serde(default = "max_turns")]
    #[schemars(range(min = 1, max = 100))]
    pub max_turns: usize,
    /// The most tokens of one answer of the model.
    #[schemars(range(min = 1, max = 10_000_000), example = 4_096)]
    pub max_tokens: Option<u32>,
    /// How long a run may take if the call does not say; 2 minutes without it, an hour at most.
    #[serde(deserialize_with = "time::option::deserialize")]
    #[schemars(schema_with = "time::schema")]
    pub timeout: Option<Duration>,
}

fn max_turns() -> usize {
    10
}

impl AppTable {
    /// Returns the checked form, with every step named. `check` has made sure that there is exactly one of
    /// `tool`, `steps`, `script` and `model`.
    pub(crate) fn into_app(self) -> App {
        let kind = match (self.tool, self.script, self.model) {
            (Some(tool), ..) => AppKind::Tool { tool },
            (None, Some(file), _) => AppKind::Script { file },
            (None, None, Some(model)) => AppKind::Model(ModelApp {
                model,
                system: self.system,
                allowed_tools: self.allowed_tools,
                max_turns: self.max_turns,
                max_tokens: self.max_tokens,
            }),
            (None, None, None) => {
                let steps = self.steps.into_iter().enumerate();
                let steps = steps.map(|(position, step)| step.into_step(position)).collect();
                AppKind::Workflow { steps, output: self.output }
            }
        };
        App { description: self.description, input_schema: self.input_schema, timeout: self.timeout, kind }
    }
}
