//! The meta-tools for a model with more tools than fit into a request, limited to the app's tools.
//!
//! Only those of the nine that make sense without a user and without other apps. The handlers are the
//! gateway's own; the gate of the app's session limits them.

use std::{sync::Arc, time::Duration};

use nonet_parts::chat::ChatTool;
use nonet_schema::Schema;
use nonet_text::{
    fault::{Fault, FaultCode},
    name::meta_tool,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    apps::Apps,
    call::{CallRequest, answer_of},
    gate::Gate,
    interrupt::Interrupt,
};
use nonet_state::session::Caller;

#[derive(serde::Deserialize)]
struct NamedTool {
    name: String,
}

#[derive(serde::Deserialize)]
struct ToolCall {
    name: String,
    #[serde(default)]
    params: Value,
    timeout_ms: Option<u64>,
    select: Option<String>,
}

/// Names, descriptions and properties; the first property is required.
fn table() -> [(&'static str, &'static str, Value, &'static [&'static str]); 6] {
    let text = |about: &str| json!({ "type": "string", "description": about });
    [
        (
            "search_tools",
            "Finds tools by meaning. Search once per step, in plain English words, and name the product. Gives names with signatures, to run with execute_tool.",
            json!({
                "query": text("What the tool should do"),
                "category": text("Only this server or group"),
                "limit": { "type": "integer", "minimum": 1, "maximum": 50 },
            }),
            &["query"],
        ),
        (
            "get_tool",
            "Reads the whole description and the exact input schema of a tool, if its signature is not enough.",
            json!({ "name": text("Tool name such as files.read_file") }),
            &["name"],
        ),
        (
            "execute_tool",
            "Runs a tool by the name that search_tools gave.",
            json!({
                "name": text("Tool name"),
                "params": { "type": "object", "description": "The tool's own params" },
                "timeout_ms": { "type": "integer", "minimum": 1 },
                "select": text("jq filter on the result, to read only what is needed"),
            }),
            &["name"],
        ),
        ("list_categories", "Lists every server and group of tools.", json!({}), &[]),
        (
            "browse_category",
            "Pages through all tools of one server or group, by name.",
            json!({ "category": text("Server or group"), "page": { "type": "integer", "minimum": 1 }, "prefix": text("Only names that begin so") }),
            &["category"],
        ),
        (
            "run_parallel",
            "Runs several tools at once. An action can use the result of another: {{id.path}} in its params.",
            json!({ "actions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": { "type": "string" },
                        "name": { "type": "string" },
                        "params": { "type": "object" },
                        "after": { "type": "array", "items": { "type": "string" } },
                    },
                    "required": ["name"],
                },
            } }),
            &["actions"],
        ),
    ]
}

fn schema(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

pub(super) fn definitions() -> Vec<ChatTool> {
    let tool = |(name, description, properties, required): (&str, &str, Value, &[&str])| ChatTool {
        name: name.into(),
        description: description.into(),
        parameters: schema(properties, required),
    };
    table().into_iter().map(tool).collect()
}

/// Calls a meta-tool. Any other name is taken as the name of a tool to run.
pub(super) async fn call(
    apps: &Arc<Apps>,
    caller: &Caller,
    name: &str,
    given: Value,
) -> Result<Value, Interrupt> {
    let Some(meant) = meta_tool(name) else {
        let request = CallRequest { name: name.into(), params: given, ..CallRequest::default() };
        return Ok(apps.calls.execute(caller, request).await?.into_tree().await);
    };
    let Some((_, _, properties, required)) = table().into_iter().find(|(name, ..)| *name == meant) else {
        let message = format!("`{meant}` is not for apps. Use the tools that you were given.");
        return Err(Fault::new(FaultCode::Forbidden, message).into());
    };
    let schema = Schema::of_tool(meant, schema(properties, required));
    let gate = Gate::of(&apps.publisher, &caller.session);
    let answer = match meant {
        "search_tools" => answer_of(&apps.find.search(caller, read(&schema, meant, given)?).await?),
        "get_tool" => {
            let NamedTool { name } = read(&schema, meant, given)?;
            answer_of(&apps.find.describe(caller, &[name], false).await?)
        }
        "execute_tool" => {
            let ToolCall { name, params, timeout_ms, select } = read(&schema, meant, given)?;
            let timeout = timeout_ms.map(|ms| Duration::from_millis(ms.max(1)));
            let request = CallRequest { name, params, timeout, select, ..CallRequest::default() };
            return Ok(apps.calls.execute(caller, request).await?.into_tree().await);
        }
        "browse_category" => answer_of(&gate.browse(&read(&schema, meant, given)?)?),
        "run_parallel" => return apps.run_parallel(caller, read(&schema, meant, given)?).await,
        _ => answer_of(&gate.categories()),
    };
    Ok(answer)
}

/// Reads arguments as leniently as any tool's.
fn read<T: DeserializeOwned>(schema: &Schema, name: &str, given: Value) -> Result<T, Fault> {
    let unfit = |why: String| {
        let message =
            format!("The arguments do not fit `{name}`: {why}. It takes {}.", schema.signature(name));
        Fault::new(FaultCode::InvalidParams, message)
    };
    let reading = schema.read(given).map_err(|misfit| unfit(misfit.faults.join("; ")))?;
    serde_json::from_value(Value::Object(reading.params)).map_err(|error| unfit(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nonet_text::name;

    #[test]
    fn they_are_some_of_the_nine_and_have_schemas() {
        for tool in definitions() {
            assert!(name::META_TOOLS.contains(&&*tool.name), "{}", tool.name);
            assert_eq!(Schema::of_tool(&tool.name, tool.parameters).broken(), None, "{}", tool.name);
        }
    }
}
