//! `gateway.fetch_result`: returns further parts of a kept result.

use futures::FutureExt;
use serde_json::json;

use super::{Access, OwnTool};
use crate::{aliases::Aliases, gateway::call::text_result};

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
            "select": { "type": "string", "description": "jq filter such as .items[0].name" },
        })
    },
    required: &["ref"],
    access: Access::ReadOnly,
    aliases: Aliases(&[("ref", &["reference", "refid", "id", "resultref"]), ("select", &["jq", "filter"])]),
    run: |gateway, caller, params| {
        async move {
            let budget = caller.limits.max_result_bytes / 2;
            Ok(text_result(gateway.kept.fetch(&caller.owner(), params, budget).await?.to_string()))
        }
        .boxed()
    },
};
