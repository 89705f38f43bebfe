//! `gateway.fetch_result`: returns further parts of a kept result.

use futures::FutureExt;
use nonet_config::select;
use nonet_servers::catalog::{EntryKind, GATEWAY};
use nonet_text::{
    aliases::Aliases,
    results::{CallResult, text_of},
};
use serde_json::{Value, json};

use super::{Access, OwnTool};
use crate::call::{PreparedCall, text_result};

pub(super) const TOOL: OwnTool = OwnTool {
    name: "fetch_result",
    title: "Read a kept result",
    description: "Reads more of a result that was too large to show whole, by its ref: rows or bytes from offset, a range of lines, lines that match a regular expression (grep), or a jq filter (select).",
    properties: || {
        json!({
            "ref": { "type": "string", "description": "Reference from the shortened result" },
            "offset": { "type": "integer", "minimum": 0, "description": "First row of an array, first byte of a text, first match of a grep" },
            "limit": { "type": "integer", "minimum": 1, "description": "How many rows, bytes or matches" },
            "lines": { "type": "string", "description": "Range of lines such as 1-40" },
            "grep": { "type": "string", "description": "Regular expression, case is ignored" },
            "select": { "type": "string", "description": "jq filter on the whole value, in which JSON text is already parsed, such as .items[0].name" },
        })
    },
    required: &["ref"],
    access: Access::ReadOnly,
    aliases: Aliases(&[("ref", &["reference", "refid", "id", "resultref"]), ("select", &["jq", "filter"])]),
    run: |gateway, caller, params| {
        async move {
            let budget = caller.limits.max_result_bytes / 2;
            Ok(text_result(gateway.keeping.kept.fetch(&caller.owner(), params, budget).await?.to_string()))
        }
        .boxed()
    },
};

/// Moves a filter beside the params of this tool into them, because in both places it is for the kept value.
/// Returns whether it did.
pub(crate) fn narrow(prepared: &mut PreparedCall, beside: &mut Option<String>) -> bool {
    let tool = &prepared.tool;
    if tool.kind != EntryKind::Tool || &*tool.server != GATEWAY || &*tool.name != TOOL.name {
        return false;
    }
    let Some(beside) = beside.take() else { return false };
    let inside = prepared.params.get("select").and_then(Value::as_str).map(String::from);
    let filter = match select::given(inside) {
        // A comment ends with its line.
        Some(inside) => format!("({inside}\n) | ({beside}\n)"),
        None => beside,
    };
    prepared.params.insert("select".into(), filter.into());
    true
}

/// Returns what a filter beside the params has given, as for every tool, if this answer has all of it.
pub(crate) fn output_of(answer: CallResult) -> CallResult {
    let whole = |answer: &Value| {
        let page: Value = serde_json::from_str(&text_of(answer)).ok()?;
        if page.get("note").is_some() {
            return None;
        }
        let is_all = page["offset"] == 0 && page.get("next_step").is_none();
        let output =
            page.get("value").or_else(|| page.get("rows").or(page.get("text")).filter(|_| is_all))?;
        Some(text_result(output.as_str().map_or_else(|| output.to_string(), String::from)))
    };
    match answer.as_tree().filter(|_| !answer.is_error()).and_then(whole) {
        Some(output) => output.into(),
        None => answer,
    }
}
