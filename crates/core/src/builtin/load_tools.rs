//! `gateway.load_tools`: the full definitions of many tools.

use futures::FutureExt;
use nonet_api::fault::NextStep;
use nonet_config::Risk;
use nonet_servers::catalog::EntryKind;
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Access, OwnTool, read};
use crate::{Gate, call::text_result, discover::BrowseArguments};
use nonet_state::session::Caller;

/// How many tools one call loads.
const MAX_LOADED: usize = 50;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "load_tools",
    title: "Load full schemas of many tools",
    description: "Gives the full definitions and input schemas of all tools of a category, or of the tools named, in one answer. Loaded tools rank higher in searches for the rest of the session.",
    properties: || {
        json!({
            "category": { "type": "string", "description": "Server or group" },
            "names": { "type": "array", "items": { "type": "string" }, "description": "Tool names" },
        })
    },
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases(&[
        ("names", &["name", "tool", "tools", "toolname", "toolnames"]),
        ("category", &["server", "servername", "group"]),
    ]),
    run: |gateway, caller, params| {
        async move {
            gateway.calls.fresh_skills().await;
            load(&Gate::of(&gateway.publisher, &caller.session), caller, read(params)?)
        }
        .boxed()
    },
};

#[derive(serde::Deserialize)]
struct LoadArguments {
    category: Option<String>,
    #[serde(default)]
    names: Vec<String>,
}

#[derive(Serialize)]
struct LoadedTool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<EntryKind>,
    description: &'a str,
    input_schema: &'a Value,
    risk: Risk,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<NextStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<String>,
}

fn load(gate: &Gate, caller: &Caller, arguments: LoadArguments) -> Result<Value, Fault> {
    let mut names = arguments.names;
    let mut left = 0;
    if let Some(category) = arguments.category {
        let page_size = Some(MAX_LOADED);
        let page = BrowseArguments { category, page_size, ..BrowseArguments::default() };
        let page = gate.browse(&page)?;
        left = page.total.saturating_sub(page.tools.len());
        names.extend(page.tools.into_iter().map(|tool| tool.name));
    }
    if names.is_empty() {
        let message = "Give a `category` or `names`; nothing matches these.";
        return Err(Fault::new(FaultCode::InvalidParams, message));
    }
    left += names.len().saturating_sub(MAX_LOADED);
    names.truncate(MAX_LOADED);
    let tools: Vec<Value> = names.iter().map(|name| load_one(gate, caller, name)).collect();
    let mut answer = json!({ "tools": tools });
    if left > 0 {
        answer["left_out"] = json!(left);
        answer["hint"] =
            json!(format!("At most {MAX_LOADED} tools are loaded at once; browse_category shows the rest."));
    }
    Ok(text_result(answer.to_string()))
}

/// Returns a tool's definition, or why the tool cannot be loaded.
fn load_one(gate: &Gate, caller: &Caller, name: &str) -> Value {
    match gate.tool(name) {
        Ok(tool) => {
            caller.session.load([tool.full.clone()]);
            json!(LoadedTool {
                name: &tool.full,
                kind: (tool.kind != EntryKind::Tool).then_some(tool.kind),
                call: (tool.kind != EntryKind::Tool).then(|| tool.call()),
                description: &tool.description,
                input_schema: tool.schema.raw(),
                risk: tool.risk,
                instructions: gate.instructions_for(caller, &tool.server),
            })
        }
        Err(fault) => {
            let mut entry = fault.to_value();
            entry["name"] = json!(name);
            entry
        }
    }
}
