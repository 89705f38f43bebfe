//! `gateway.read_resource`: a server's resource as a result.

use futures::FutureExt;
use nonet_servers::catalog::GATEWAY;
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
    name::full_name,
};
use serde_json::{Value, json};

use super::{Access, OwnTool, read};
use crate::{Gateway, gate::Gate};
use nonet_state::session::Caller;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "read_resource",
    title: "Read a resource",
    description: "Reads a resource of a server by its URI: one that a result links to (resource_link), or one that a server lists.",
    properties: || json!({ "uri": { "type": "string", "description": "URI of the resource, as the link gives it" } }),
    required: &["uri"],
    access: Access::ReadOnly,
    aliases: Aliases(&[("uri", &["url", "resource", "resourceuri", "link"])]),
    run: |gateway, caller, params| {
        async move {
            let arguments: ResourceArguments = read(params)?;
            as_result(gateway, caller, arguments.uri.trim()).await
        }
        .boxed()
    },
};

#[derive(serde::Deserialize)]
struct ResourceArguments {
    uri: String,
}

async fn as_result(gateway: &Gateway, caller: &Caller, uri: &str) -> Result<Value, Fault> {
    let gate = Gate::of(&gateway.publisher, &caller.session);
    let name = full_name(GATEWAY, TOOL.name);
    let Some(tool) = gate.catalog().get(&name) else {
        return Err(Fault::new(FaultCode::UnknownTool, format!("There is no tool `{name}`.")));
    };
    let mut resource = gateway.calls.read_resource_or_ask(caller, uri, tool).await?;
    let contents = match resource.get_mut("contents").map(Value::take) {
        Some(Value::Array(contents)) => contents,
        _ => Vec::new(),
    };
    Ok(json!({ "content": contents.into_iter().map(block).collect::<Vec<_>>() }))
}

/// Turns text into a text block, a picture or sound into its own block, and anything else into an embedded
/// resource.
fn block(content: Value) -> Value {
    let kind = content.get("mimeType").and_then(Value::as_str).unwrap_or_default();
    let media = kind.split_once('/').map_or("", |(media, _)| media);
    match (content.get("text"), content.get("blob")) {
        (Some(text), _) => json!({ "type": "text", "text": text }),
        (None, Some(data)) if matches!(media, "image" | "audio") => {
            json!({ "type": media, "data": data, "mimeType": kind })
        }
        _ => json!({ "type": "resource", "resource": content }),
    }
}
