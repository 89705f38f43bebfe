//! `gateway.describe_api`: tools as TypeScript declarations.

use std::{collections::BTreeSet, sync::Arc};

use futures::FutureExt;
use nonet_api::fault::Reader;
use nonet_script::declarations::{DeclaredTool, SCRIPT_GLOBALS, Scope, declarations};
use nonet_servers::{
    catalog::{EntryKind, Tool},
    policy::PolicyVerdict,
};
use nonet_state::session::Caller;
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
};
use serde_json::{Value, json};

use super::{Access, OwnTool, read};
use crate::{Gateway, call::text_result, gate::Gate};

/// How many names one call may give.
const MAX_NAMES: usize = 50;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "describe_api",
    title: "Declare tools in TypeScript",
    description: "Gives TypeScript declarations of tools, the shortest whole form of their schemas, for a script of gateway.run_script. Names are of tools, servers or categories. With full, descriptions of all properties and the globals of scripts as well: what `nonet types` writes for an editor.",
    properties: || {
        json!({
            "names": { "type": "array", "items": { "type": "string" }, "maxItems": MAX_NAMES, "description": "Tools, servers, categories" },
            "full": { "type": "boolean", "description": "Everything, for an editor; without names, all tools" },
        })
    },
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases(&[("names", &["name", "tools", "servers", "categories"])]),
    run: |gateway, caller, params| async move { describe(gateway, caller, read(params)?).await }.boxed(),
};

#[derive(serde::Deserialize)]
struct ApiArguments {
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    full: bool,
}

async fn describe(gateway: &Arc<Gateway>, caller: &Caller, arguments: ApiArguments) -> Result<Value, Fault> {
    let ApiArguments { names, full } = arguments;
    if names.is_empty() && !full {
        let message = "`names` is required: tools, servers or categories.";
        return Err(Fault::new(FaultCode::InvalidParams, message).next("list_categories", json!({})));
    }
    let gate = Gate::of(&gateway.publisher, &caller.session);
    let mut tools: Vec<Arc<Tool>> = Vec::new();
    if names.is_empty() {
        tools.extend(gate.tools().cloned());
    }
    for name in &names {
        match gate.members(name.trim(), Reader::Model) {
            Ok(members) => tools.extend(members_of(&gate, &members)),
            Err(_) => tools.push(gateway.calls.find_tool(caller, name).await?.1),
        }
    }
    // Grouped by server, in the order of names.
    tools.sort_by(|one, other| one.full.cmp(&other.full));
    tools.dedup_by(|one, other| one.full == other.full);
    let callable = tools.iter().filter(|tool| matches!(tool.kind, EntryKind::Tool | EntryKind::App));
    let declared: Vec<DeclaredTool<'_>> = callable.map(|tool| declared(&gate, tool)).collect();
    let scope = if full { Scope::Full } else { Scope::Compact };
    let mut text = if full { SCRIPT_GLOBALS.to_string() } else { String::new() };
    text.push_str(&declarations(&declared, scope));
    Ok(text_result(text))
}

fn members_of(gate: &Gate, members: &BTreeSet<usize>) -> Vec<Arc<Tool>> {
    let seen = members.iter().filter_map(|at| gate.snapshot.tools.get(*at));
    seen.filter(|tool| gate.allows(tool)).cloned().collect()
}

fn declared<'t>(gate: &Gate, tool: &'t Tool) -> DeclaredTool<'t> {
    let mut notes = Vec::new();
    if tool.read_only {
        notes.push("read-only");
    }
    if matches!(gate.verdict(tool), PolicyVerdict::Approve(_)) {
        notes.push("asks the user");
    }
    DeclaredTool {
        server: &tool.server,
        name: &tool.name,
        description: &tool.description,
        input: tool.schema.raw(),
        output: tool.definition.get("outputSchema"),
        notes,
    }
}
