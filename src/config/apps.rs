//! `[apps.ID]`: a tool under a name of its own, or a workflow of steps.
//!
//! [`AppTable`] is the table as written and the source of its JSON Schema; [`App`] is the checked form. `check` has the
//! steps checked by [`crate::workflow`].

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// An entry of `[apps.ID]`, run by `call_app`.
#[derive(Clone, Debug)]
pub struct App {
    /// What it does; shown in the list of apps.
    pub description: String,
    /// The JSON Schema of its input. None: any object.
    pub input_schema: Option<Value>,
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

/// An app as written: a tool (`tool`) or a workflow (`steps`).
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
    pub steps: Vec<Step>,
    /// A template of the workflow's output: a text, or a table of texts.
    #[schemars(extend("type" = ["string", "object", "array"]), example = &"{{step2}}")]
    pub output: Option<Value>,
}

impl AppTable {
    /// The checked form, with every step named. Only one of `tool` and `steps` is there: `check` has looked.
    pub fn into_app(self) -> App {
        let kind = match self.tool {
            Some(tool) => AppKind::Tool { tool },
            None => {
                let mut steps = self.steps;
                for (position, step) in steps.iter_mut().enumerate().filter(|(_, step)| step.id.is_empty()) {
                    step.id = default_id(position);
                }
                AppKind::Workflow { steps, output: self.output }
            }
        };
        App { description: self.description, input_schema: self.input_schema, kind }
    }
}
