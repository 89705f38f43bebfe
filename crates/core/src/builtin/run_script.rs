//! `gateway.run_script`: JavaScript that calls tools.

use futures::FutureExt;
use nonet_text::aliases::Aliases;
use serde_json::json;

use super::{Access, OwnTool, read};
use crate::apps::script::RUN_SCRIPT;

pub(super) const TOOL: OwnTool = OwnTool {
    name: RUN_SCRIPT,
    title: "Run a script that calls tools",
    description: "Runs JavaScript (ES2023) that calls tools: loops, pages until there is no next one, joins of several lists, a fallback per item, tables, in one call. `await tools.SERVER.TOOL({...})` or `await call(name, params)` gives the result's value (JSON if it is JSON); a failed call throws an error with `code`, `message`, `retryable`. Also: `all(list, fn, {max: 8})`, `search(query)`, `describe(name)`, `result(ref).json() .text() .lines() .jq(filter)`, `input`, `log(...)`, `progress(n, of, text)`, `sleep(ms)`, `ask(question, choices)`, `parse.csv(text) .jsonl(text)`, `format.csv(rows) .markdown(rows)`. `return` gives the answer: return only what is needed. No files, network or modules; at most 500 calls. Approvals pause it, and ask_user goes on; a script that failed goes on with {resume, script}.",
    properties: || {
        json!({
            "script": { "type": "string", "description": "JavaScript, the body of an async function" },
            "input": { "description": "What `input` is in the script" },
            "timeout": { "type": "integer", "minimum": 1, "maximum": 3600, "description": "Seconds, 300 if absent" },
            "label": { "type": "string", "maxLength": 80, "description": "What it does, for people" },
            "resume": { "type": "string", "description": "Token of a script that stopped early: goes on without repeating calls that succeeded" },
        })
    },
    required: &[],
    access: Access::Reversible,
    aliases: Aliases(&[
        ("script", &["code", "javascript", "js", "source"]),
        ("input", &["args", "arguments", "params", "data"]),
        ("timeout", &["timeouts", "timeoutseconds"]),
        ("label", &["title", "description"]),
        ("resume", &["token", "scriptid"]),
    ]),
    run: |gateway, caller, params| {
        async move { gateway.apps.run_script(caller, read(params)?).await }.boxed()
    },
};
