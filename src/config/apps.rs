//! `[apps.ID]`: a tool under a name of its own, a workflow of steps, or a model with tools.
//!
//! [`AppTable`] is the table as written and the source of its JSON Schema; [`App`] is the checked form. `check` has the
//! steps checked by [`crate::workflow`].

use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Globs, Secret, values::time};

/// How many turns a model has if the file does not say.
const MAX_TURNS: usize = 10;
/// The one text that `model` can be.
const CLIENT: &str = "client";

/// An entry of `[apps.ID]`, run by `call_app`.
#[derive(Clone, Debug)]
pub struct App {
    /// What it does; shown in the list of apps.
    pub description: String,
    /// The JSON Schema of its input. None: any object.
    pub input_schema: Option<Value>,
    /// How long a run may take if the call does not say.
    pub timeout: Option<Duration>,
    /// What runs.
    pub kind: AppKind,
}

/// What an app runs.
#[derive(Clone, Debug)]
pub enum AppKind {
    /// One tool, called with the app's input.
    Tool {
        /// The tool, in any form a tool name is taken in.
        tool: String,
    },
    /// Steps that feed each other.
    Workflow {
        /// The steps as written: ids are unique, `after` and templates make no circle.
        steps: Vec<Step>,
        /// A template (a text, or a table of texts) of the output. None: the last step's value.
        output: Option<Value>,
    },
    /// A model that calls tools until it has an answer.
    Model(ModelApp),
}

/// A model and what it may do.
#[derive(Clone, Debug)]
pub struct ModelApp {
    /// Where the model is.
    pub model: Model,
    /// What the model is told before the input.
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
pub enum Model {
    /// The client's own model, by sampling. Holds the word `client`.
    Client(String),
    /// An endpoint for chat completions.
    Endpoint(ModelEndpoint),
}

impl Model {
    /// What the model is called in the list of apps.
    pub fn name(&self) -> &str {
        match self {
            Self::Client(word) => word,
            Self::Endpoint(endpoint) => &endpoint.name,
        }
    }
}

/// An endpoint that speaks OpenAI's chat completions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEndpoint {
    /// The address up to `/chat/completions`.
    pub base_url: String,
    /// What the endpoint calls the model.
    pub name: String,
    /// The key, if the endpoint wants one.
    pub api_key: Option<Secret>,
}

/// Checks the text that `model` can be.
pub(super) fn model_word(text: &str) -> Result<(), String> {
    match text == CLIENT {
        true => Ok(()),
        false => Err("is not a model: only `client` is a text".into()),
    }
}

fn model_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "string"],
        "format": "app-model",
        "properties": {
            "base_url": {
                "type": "string",
                "format": "http-url",
                "description": "The address of the endpoint, up to `/chat/completions`.",
                "examples": ["https://api.openai.com/v1"],
            },
            "name": {
                "type": "string",
                "minLength": 1,
                "description": "The name of the model at the endpoint.",
                "examples": ["gpt-5-mini"],
            },
            "api_key": {
                "type": "string",
                "minLength": 1,
                "format": "header-value",
                "description": "The key, sent as a bearer token to `base_url` and nowhere else.",
                "examples": ["${OPENAI_API_KEY}"],
            },
        },
        "required": ["base_url", "name"],
        "additionalProperties": false,
        "examples": [{ "base_url": "https://api.openai.com/v1", "name": "gpt-5-mini", "api_key": "${OPENAI_API_KEY}" }],
    })
}

/// One step of a workflow: a call of one tool.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name in `after` and in templates. Left out: `step1`, `step2` and so on by position.
    #[serde(default)]
    #[schemars(extend("format" = "step-id", "default" = null), example = &"fetch")]
    pub id: String,
    /// The tool, in any form a tool name is taken in.
    #[schemars(length(min = 1), example = &"server.tool")]
    pub tool: String,
    /// The arguments; texts in them may be templates (`{{input.city}}`, `{{step1.rows.0}}`).
    #[serde(default)]
    #[schemars(example = json!({ "text": "{{input.text}}" }))]
    pub params: Map<String, Value>,
    /// Steps that must be done before this one. A template that names a step waits for it anyway.
    #[serde(default)]
    #[schemars(example = json!(["step1"]))]
    pub after: Vec<String>,
    /// `true`: a failure of this step does not fail the workflow.
    #[serde(default)]
    pub optional: bool,
}

/// The id of a step without one, by its position from 0.
pub(super) fn default_id(position: usize) -> String {
    format!("step{}", position + 1)
}

/// An app as written: a tool (`tool`), a workflow (`steps`) or a model (`model`).
#[derive(Deserialize, JsonSchema)]
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
    pub steps: Vec<Step>,
    /// A template of the workflow's output: a text, or a table of texts.
    #[schemars(extend("type" = ["string", "object", "array"]), example = &"{{step2}}")]
    pub output: Option<Value>,
    /// A model that works on the input with tools: an endpoint that speaks OpenAI's chat completions, or `"client"` for the
    /// client's own model (sampling).
    #[schemars(schema_with = "model_schema")]
    pub model: Option<Model>,
    /// What the model is told before the input.
    #[schemars(example = &"You answer in one sentence.")]
    pub system: String,
    /// The tools that the model may call: patterns on full names (`server.tool`). Tools that need approval are refused.
    #[schemars(example = json!(["files.read_*"]))]
    pub allowed_tools: Globs,
    /// How many times the model may answer; each answer may call several tools.
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

impl Default for AppTable {
    fn default() -> Self {
        Self {
            description: String::new(),
            input_schema: None,
            tool: None,
            steps: Vec::new(),
            output: None,
            model: None,
            system: String::new(),
            allowed_tools: Globs::default(),
            max_turns: MAX_TURNS,
            max_tokens: None,
            timeout: None,
        }
    }
}

impl AppTable {
    /// The checked form, with every step named. Only one of `tool`, `steps` and `model` is there: `check` has looked.
    pub fn into_app(self) -> App {
        let kind = match (self.tool, self.model) {
            (Some(tool), _) => AppKind::Tool { tool },
            (None, Some(model)) => AppKind::Model(ModelApp {
                model,
                system: self.system,
                allowed_tools: self.allowed_tools,
                max_turns: self.max_turns,
                max_tokens: self.max_tokens,
            }),
            (None, None) => {
                let mut steps = self.steps;
                for (position, step) in steps.iter_mut().enumerate().filter(|(_, step)| step.id.is_empty()) {
                    step.id = default_id(position);
                }
                AppKind::Workflow { steps, output: self.output }
            }
        };
        App { description: self.description, input_schema: self.input_schema, timeout: self.timeout, kind }
    }
}
