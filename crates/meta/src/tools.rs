//! The nine: the description of each, the aliases of its arguments, and its handler.

use std::{sync::LazyLock, time::Duration};

use futures::FutureExt;
use nonet_schema::Schema;
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
    results::CallResult,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    arguments::CALL,
    read::{Definition, Hint, MetaCall, MetaTool, any, object},
};
use nonet_core::{
    AppArguments,
    call::{CallRequest, answer_of},
};

/// The nine, in the order of `tools/list`.
pub(super) static META: LazyLock<[MetaTool; 9]> = LazyLock::new(|| {
    [
        search_tools(),
        get_tool(),
        execute_tool(),
        list_categories(),
        browse_category(),
        run_parallel(),
        use_skill(),
        call_app(),
        ask_user(),
    ]
    .map(MetaTool::from)
});

/// The keys of `execute_tool` and of an action of `run_parallel`. Other keys beside `name` may be params.
const EXECUTE_KEYS: [&str; 5] = ["name", "params", "timeout_ms", "background", "select"];
const ACTION_KEYS: [&str; 13] = [
    "id",
    "name",
    "params",
    "filter",
    "after",
    "when",
    "for_each",
    "max_concurrency",
    "on_error",
    "retry",
    "timeout_ms",
    "select",
    "show",
];

/// The schema of an action that calls a tool.
static ACTION: LazyLock<Schema> = LazyLock::new(|| Schema::new(action_schema(&["name"])));

fn text(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

fn answer(answer: &impl Serialize) -> CallResult {
    answer_of(answer).into()
}

fn search_tools() -> Definition {
    Definition {
        name: "search_tools",
        description: "Find the right tool, skill or app by meaning among all of the user's MCP servers: files, git and code hosts, web, databases, mail, calendars, time, memory and every product connected here. None is listed elsewhere, so search whenever a step needs something outside of this chat, before saying that it cannot be done. Search once per step and name the product: \"create a github issue\", not the whole task. Gives names to run with execute_tool: one in full if it is sure, else several.",
        properties: json!({
            "query": text("What the tool should do; English works best"),
            "category": text("Only this server or group"),
            "limit": { "type": "integer", "minimum": 1, "maximum": 50, "default": 5 },
            "detail": { "type": "string", "enum": ["name", "signature", "full"] },
            "max_risk": { "type": "string", "enum": ["low", "medium", "high"] },
            "kind": { "type": "string", "enum": ["tool", "skill", "app"] },
            "tags": { "type": "array", "items": { "type": "string" } },
        }),
        required: &[],
        hints: &[Hint::ReadOnly, Hint::AlwaysLoad],
        aliases: Aliases(&[
            ("query", &["q", "search", "text", "task", "searchquery", "keywords", "question", "prompt"]),
            ("category", &["server", "servername", "group"]),
            ("limit", &["maxresults", "topk", "count"]),
            ("detail", &["details"]),
            ("max_risk", &["risk"]),
            ("kind", &["type", "kinds"]),
            ("tags", &["tag"]),
        ]),
        run: |call| {
            async move { Ok(answer(&call.gateway.find.search(call.caller, call.read()?).await?)) }.boxed()
        },
    }
}

#[derive(serde::Deserialize)]
struct DescribeArguments {
    name: Option<String>,
    names: Option<Vec<String>>,
}

fn get_tool() -> Definition {
    Definition {
        name: "get_tool",
        description: "Read everything about what search found: whole description, exact input schema, risk, and a call to copy. Needed only when the signature is not enough.",
        properties: json!({
            "name": text("Such as files.read_file"),
            "names": { "type": "array", "items": { "type": "string" }, "maxItems": 5 },
        }),
        required: &[],
        hints: &[Hint::ReadOnly],
        aliases: Aliases(&[("name", &["tool", "toolname"]), ("names", &["tools", "toolnames"])]),
        run: |call| {
            async move {
                let wanted: DescribeArguments = call.read()?;
                let many = wanted.names.is_some();
                let names: Vec<String> = wanted.names.into_iter().flatten().chain(wanted.name).collect();
                if names.is_empty() {
                    let message = "Give the `name` of a tool, or up to five `names`.";
                    return Err(Fault::new(FaultCode::InvalidParams, message).into());
                }
                Ok(answer(&call.gateway.find.describe(call.caller, &names, many).await?))
            }
            .boxed()
        },
    }
}

#[derive(serde::Deserialize)]
struct ExecuteArguments {
    name: String,
    timeout_ms: Option<u64>,
    #[serde(default)]
    background: bool,
    select: Option<String>,
}

fn execute_tool() -> Definition {
    Definition {
        name: "execute_tool",
        description: "Run a tool, skill or app by the name that search_tools gave, with its params. Gives the server's own result. A slow call goes on in the background and gives a task_id; a result too large to show is kept and gives a ref. A failed call says what to do next.",
        properties: json!({
            "name": { "type": "string" },
            "params": { "type": "object", "description": "The tool's own params" },
            "timeout_ms": { "type": "integer", "minimum": 1 },
            "background": { "type": "boolean", "description": "Do not wait for the result" },
            "select": text("jq on the result's value, to read only what is needed; JSON text is already parsed"),
        }),
        required: &["name"],
        hints: &[Hint::AlwaysLoad, Hint::MayBeTask],
        aliases: CALL,
        run: |call| {
            async move {
                let request = match call.name_and_params() {
                    Some((name, params)) => CallRequest { name, params, ..CallRequest::default() },
                    None => execute_request(call)?,
                };
                call.gateway.calls.execute(call.caller, request).await
            }
            .boxed()
        },
    }
}

/// Reads the arguments of `execute_tool`, as models write them.
fn execute_request(call: &mut MetaCall<'_>) -> Result<CallRequest, Fault> {
    let given = Value::Object(std::mem::take(&mut call.arguments));
    call.arguments = match call.call_of_tool(&EXECUTE_KEYS, &call.tool.schema, given) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let mut given = call.read_fields()?;
    // Not converted with the others, which would copy the whole tree.
    let params = given.shift_remove("params").unwrap_or_default();
    let wanted: ExecuteArguments = call.converted(given)?;
    Ok(CallRequest {
        name: wanted.name,
        params,
        timeout: wanted.timeout_ms.map(|ms| Duration::from_millis(ms.max(1))),
        background: wanted.background,
        select: wanted.select,
        of_ui: false,
        verbatim: false,
    })
}

fn list_categories() -> Definition {
    Definition {
        name: "list_categories",
        description: "See what is connected: every server and group with description, size and state.",
        properties: json!({}),
        required: &[],
        hints: &[Hint::ReadOnly],
        aliases: Aliases::NONE,
        run: |call| {
            async move {
                call.rename();
                Ok(answer(&call.gateway.find.list_categories(call.caller).await))
            }
            .boxed()
        },
    }
}

fn browse_category() -> Definition {
    Definition {
        name: "browse_category",
        description: "Page through all tools of one server or group by name, when a search does not find what must be there.",
        properties: json!({
            "category": text("Server or group"),
            "page": { "type": "integer", "minimum": 1 },
            "page_size": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20 },
            "prefix": text("Only names that begin so"),
        }),
        required: &["category"],
        hints: &[Hint::ReadOnly],
        aliases: Aliases(&[
            ("category", &["server", "servername", "group", "name"]),
            ("page_size", &["limit", "perpage", "size"]),
        ]),
        run: |call| {
            async move { Ok(answer(&call.gateway.find.browse(call.caller, &call.read()?).await?)) }.boxed()
        },
    }
}

/// Returns the schema of an action. An action without a tool has a filter.
fn action_schema(required: &[&str]) -> Value {
    object(
        json!({
            "id": text("For {{id...}}; else its number"),
            "name": { "type": "string" },
            "params": { "type": "object" },
            "filter": text("jq on {steps, input}, without a tool"),
            "after": { "type": "array", "items": { "type": "string" } },
            "when": text("jq on {steps}: skip if false"),
            "for_each": any("string", "{{list}}; params take {{item}}"),
            "max_concurrency": { "type": "integer" },
            "on_error": { "type": "string", "enum": ["stop", "keep"] },
            "retry": any("object", "{times, wait}"),
            "timeout_ms": { "type": "integer", "minimum": 1 },
            "select": text("jq on its result"),
            "show": { "type": "boolean" },
        }),
        required,
    )
}

fn run_parallel() -> Definition {
    Definition {
        name: "run_parallel",
        description: "Run several tools at once, dependent ones as a graph. {{id.path}} in params takes an earlier action's result without reading it: the answer only names it, unless `show`. `after` only waits. One failure does not touch the others. Loops, pages, joins: gateway.run_script.",
        properties: json!({
            "actions": {
                "type": "array",
                "minItems": 1,
                "maxItems": 50,
                "items": action_schema(&[]),
            },
            "max_concurrency": { "type": "integer", "minimum": 1, "maximum": 50 },
            "fail_fast": { "type": "boolean" },
        }),
        required: &["actions"],
        hints: &[Hint::MayBeTask],
        aliases: Aliases(&[
            ("actions", &["tasks", "calls", "toolcalls", "steps"]),
            ("max_concurrency", &["concurrency", "maxparallel"]),
            ("fail_fast", &["stoponerror"]),
        ]),
        run: |call| {
            async move {
                call.rename();
                if let Some(actions) = call.arguments.get_mut("actions").map(Value::take) {
                    let actions = call.actions(&ACTION_KEYS, &ACTION, actions)?;
                    call.arguments.insert("actions".into(), actions);
                }
                Ok(call.gateway.apps.run_parallel(call.caller, call.read_named()?).await?.into())
            }
            .boxed()
        },
    }
}

fn use_skill() -> Definition {
    Definition {
        name: "use_skill",
        description: "Get step-by-step instructions for a kind of task: the user's skills and the servers' prompts. Without command: the list, or the best for query. Follow the text that it gives.",
        properties: json!({
            "command": text("Skill, such as release-notes or server/prompt"),
            "query": { "type": "string" },
            "file": text("A file beside the skill"),
            "arguments": any("object", "What it takes; text works too"),
        }),
        required: &[],
        hints: &[Hint::ReadOnly],
        aliases: Aliases(&[
            ("command", &["skill", "name", "skillname"]),
            ("query", &["q", "search", "text", "task"]),
            ("file", &["path", "filename"]),
            ("arguments", &["args", "input", "params", "parameters"]),
        ]),
        run: |call| {
            async move {
                call.take_beside("command", "arguments");
                Ok(call.gateway.calls.use_skill(call.caller, call.read()?).await?.into())
            }
            .boxed()
        },
    }
}

fn call_app() -> Definition {
    Definition {
        name: "call_app",
        description: "Run a workflow or another app that the user has set up. Without app_id: the list.",
        properties: json!({
            "app_id": { "type": "string" },
            "input": any("object", "What it takes; text works too"),
            "timeout": { "type": "integer", "minimum": 1, "maximum": 3600, "default": 120, "description": "Seconds" },
        }),
        required: &[],
        hints: &[Hint::MayBeTask],
        aliases: Aliases(&[
            ("app_id", &["app", "name", "appname", "id"]),
            (
                "input",
                &[
                    "prompt",
                    "arguments",
                    "args",
                    "inputs",
                    "params",
                    "parameters",
                    "toolinput",
                    "data",
                    "payload",
                ],
            ),
        ]),
        run: |call| {
            async move {
                // The token that continues an app which has asked: the app's answer announces it, not the
                // definition.
                let token = call.arguments.shift_remove("token").filter(|token| !token.is_null());
                let answer = token.as_ref().and_then(|_| call.arguments.shift_remove("answer"));
                call.take_beside("app_id", "input");
                let arguments: AppArguments = call.read()?;
                Ok(call.gateway.apps.call_app(call.caller, arguments.going_on(token, answer)).await?.into())
            }
            .boxed()
        },
    }
}

fn ask_user() -> Definition {
    Definition {
        name: "ask_user",
        description: "Ask the user a question, a choice, a form, or to approve or edit content, and get the answer. If the status is needs_user, ask in the chat and call again with token and answer; a yes runs the call that waits. Never ask for passwords or keys.",
        properties: json!({
            "question": { "type": "string" },
            "content": text("Text to approve or edit"),
            "choices": { "type": "array", "items": { "type": "string" } },
            "allow_multiple": { "type": "boolean" },
            "form": { "type": "object", "description": "Flat JSON Schema of the fields" },
            "default": any("string", "Answer if none is given"),
            "timeout": { "type": "integer", "minimum": 1, "default": 300, "description": "Seconds" },
            "token": { "type": "string" },
            "answer": any("string", "What the user said, with token"),
        }),
        required: &[],
        // Not read-only, because a yes runs the call that waited for it.
        hints: &[Hint::Harmless],
        aliases: Aliases(&[
            ("question", &["message", "prompt", "text"]),
            ("content", &["draft"]),
            ("choices", &["options"]),
            ("allow_multiple", &["multiple", "multiselect"]),
            ("form", &["schema", "requestedschema"]),
            ("default", &["defaultanswer"]),
            ("answer", &["decision", "response", "reply"]),
        ]),
        run: |call| async move { call.gateway.apps.ask_user(call.caller, call.read()?).await }.boxed(),
    }
}
