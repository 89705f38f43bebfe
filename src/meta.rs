//! The nine meta-tools: what a client sees of Nonet, and the way from a `tools/call` to an operation.
//!
//! The definitions are constant: clients cache prompts on them. Whatever else is called by name is
//! routed as if it were `execute_tool`.

mod arguments;

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use rmcp::model::ErrorData;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{
    fault::{Code, Fault},
    gateway::{
        AppArguments, AskArguments, BrowseArguments, Gateway, Interrupt, NEEDS_CONFIG, ParallelArguments,
        SearchArguments, SkillArguments,
        call::{Request, text_result},
        session::Caller,
    },
    jobs::Job,
    name,
    schema::{Reading, Schema},
};

/// The meta-tools, in the order of `tools/list`.
pub const NAMES: [&str; 9] = crate::name::META_TOOLS;

/// The keys of `execute_tool`, and of an action of `run_parallel`; others beside `name` may be params.
const EXECUTE_KEYS: [&str; 5] = ["name", "params", "timeout_ms", "background", "select"];
const ACTION_KEYS: [&str; 6] = ["id", "name", "params", "after", "timeout_ms", "select"];

/// Left-out servers that the instructions name.
const LEFT_OUT: usize = 5;

/// What a call of a meta-tool comes to.
#[derive(Debug)]
pub enum Answer {
    /// A `CallToolResult`.
    Result(Value),
    /// It goes on as a task, which the client follows.
    Task(Arc<Job>),
    /// The server's own error, where its answer is passed on as it is.
    Refused(Box<ErrorData>),
}

struct MetaTool {
    definition: Value,
    schema: Schema,
    /// The names of its arguments.
    names: Vec<String>,
}

static META: LazyLock<Vec<MetaTool>> = LazyLock::new(|| {
    raw_definitions()
        .into_iter()
        .map(|definition| {
            let name = definition["name"].as_str().unwrap_or_default();
            let schema = Schema::of_tool(name, definition["inputSchema"].clone());
            let names = schema.parameters().iter().map(|parameter| parameter.name.to_string()).collect();
            MetaTool { definition, schema, names }
        })
        .collect()
});

/// The schema of an action of `run_parallel`.
static ACTION: LazyLock<Schema> = LazyLock::new(|| {
    let all = META.iter().find(|tool| tool.definition["name"] == "run_parallel");
    let schema = all.map(|tool| tool.definition["inputSchema"]["properties"]["actions"]["items"].clone());
    Schema::new(schema.unwrap_or_default())
});

/// The nine definitions, as `tools/list` gives them.
pub fn definitions() -> Vec<Value> {
    META.iter().map(|tool| tool.definition.clone()).collect()
}

/// What `initialize` and `server/discover` say of Nonet: at most 2,000 characters.
pub fn instructions(gateway: &Gateway, caller: &Caller) -> String {
    let categories = gateway.gate(&caller.session).categories();
    let (left_out, there): (Vec<&Value>, Vec<&Value>) = categories["categories"]
        .as_array()
        .into_iter()
        .flatten()
        .partition(|category| category["state"] == NEEDS_CONFIG);
    let left_out = told_left_out(&left_out);
    let names: Vec<String> = there
        .into_iter()
        .map(|category| {
            let name = category["name"].as_str().unwrap_or_default();
            let about = category["description"].as_str().unwrap_or_default();
            if about.is_empty() {
                name.to_string()
            } else {
                format!("{name} ({})", crate::text::clip(about, 60))
            }
        })
        .collect();
    let mut text = String::from(
        "Nonet is one door to all of the user's MCP servers. Their tools are not listed: find them. \
         Whenever a task needs something outside of this chat (files, web, code hosts, databases, mail, \
         calendars, time, memory, any product or API), call search_tools with what the step should do, \
         naming the product if there is one; then execute_tool with the name found. Search once per \
         step, not for the whole task. get_tool gives a full schema when the signature is not enough.",
    );
    if !names.is_empty() {
        text.push_str("\n\n");
        match gateway.gate(&caller.session).count_tools() {
            0 => {}
            1 => text.push_str("One tool by now. "),
            count => text.push_str(&format!("{count} tools by now. ")),
        }
        text.push_str("Categories: ");
        for (n, name) in names.iter().enumerate() {
            if text.len() + name.len() + left_out.len() + 100 > caller.limits.max_instructions {
                text.push_str(&format!(" and {} more", names.len() - n));
                break;
            }
            if n > 0 {
                text.push_str(", ");
            }
            text.push_str(name);
        }
        text.push('.');
    }
    text.push_str(&left_out);
    crate::text::clip(&text, caller.limits.max_instructions.saturating_sub(10))
}

/// Names the servers that cannot be used; empty if there is none.
fn told_left_out(categories: &[&Value]) -> String {
    if categories.is_empty() {
        return String::new();
    }
    let names = categories.iter().take(LEFT_OUT).filter_map(|category| category["name"].as_str());
    let names: Vec<String> = names.map(|name| crate::text::clip(name, 40)).collect();
    let more = match categories.len().saturating_sub(LEFT_OUT) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = names.join(", ");
    format!(
        "\n\nLeft out until the user puts the configuration right (list_categories says how): {names}{more}."
    )
}

/// Answers a `tools/call`.
pub async fn call(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    name: &str,
    arguments: Map<String, Value>,
) -> Answer {
    gateway.recalled_lists().await;
    let mut notes = Vec::new();
    let at = NAMES.iter().position(|known| *known == name);
    let verbatim = at.is_none() && gateway.gate(&caller.session).is_verbatim(name);
    let at = at.or_else(|| {
        let meant = if verbatim { None } else { gateway.gate(&caller.session).meta_tool(name) };
        meant.and_then(|meant| NAMES.iter().position(|known| *known == meant))
    });
    let outcome = match at {
        Some(at) => meta_call(gateway, caller, at, arguments, &mut notes).await,
        None => {
            let params = Value::Object(arguments);
            let request = Request { name: name.into(), params, verbatim, ..Request::default() };
            gateway.execute(caller, request).await
        }
    };
    let mut result = match outcome {
        Ok(result) => result,
        Err(Interrupt::Fault(fault)) => fault.to_result(),
        Err(Interrupt::Task(job)) => return Answer::Task(job),
        Err(Interrupt::Refused(error)) => return Answer::Refused(error),
    };
    // An answer to a cancelled request is not read by anybody.
    if !caller.cancel.is_cancelled() && !verbatim {
        caller.session.attach_notices(&mut result, notes);
    }
    Answer::Result(result)
}

async fn meta_call(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    at: usize,
    arguments: Map<String, Value>,
    notes: &mut Vec<Value>,
) -> Result<Value, Interrupt> {
    let text = |value: Value| text_result(value.to_string());
    // What stands beside the name of a call may be its params.
    let arguments = if NAMES[at] == "execute_tool" { arguments } else { named(notes, at, arguments) };
    Ok(match NAMES[at] {
        "search_tools" => text(gateway.search(caller, read::<SearchArguments>(notes, at, arguments)?).await?),
        "get_tool" => {
            #[derive(serde::Deserialize)]
            struct Arguments {
                name: Option<String>,
                names: Option<Vec<String>>,
            }
            let wanted: Arguments = read(notes, at, arguments)?;
            let many = wanted.names.is_some();
            let mut names = wanted.names.unwrap_or_default();
            names.extend(wanted.name);
            if names.is_empty() {
                return Err(Fault::new(
                    Code::InvalidParams,
                    "Give the `name` of a tool, or up to five `names`.",
                )
                .into());
            }
            text(gateway.describe(caller, &names, many).await?)
        }
        "execute_tool" => {
            #[derive(serde::Deserialize)]
            struct Arguments {
                name: String,
                #[serde(default)]
                params: Value,
                timeout_ms: Option<u64>,
                #[serde(default)]
                background: bool,
                select: Option<String>,
            }
            let schema = &META[at].schema;
            let call = one_call(
                gateway,
                caller,
                &mut |it| tell_repairs(notes, at, it),
                &EXECUTE_KEYS,
                schema,
                Value::Object(arguments),
            );
            let arguments = match call {
                Value::Object(fields) => fields,
                _ => Map::new(),
            };
            let wanted: Arguments = read(notes, at, arguments)?;
            let request = Request {
                name: wanted.name,
                params: wanted.params,
                timeout: wanted.timeout_ms.map(|ms| Duration::from_millis(ms.max(1))),
                background: wanted.background,
                select: wanted.select,
                verbatim: false,
            };
            gateway.execute(caller, request).await?
        }
        "list_categories" => text(gateway.gate(&caller.session).categories()),
        "browse_category" => {
            text(gateway.gate(&caller.session).browse(&read::<BrowseArguments>(notes, at, arguments)?)?)
        }
        "run_parallel" => {
            let mut arguments = arguments;
            if let Some(actions) = arguments.get_mut("actions") {
                let (given, changes) = arguments::actions(actions.take());
                tell_repairs(notes, at, changes);
                *actions = match given {
                    Value::Array(list) => list
                        .into_iter()
                        .map(|one| {
                            one_call(
                                gateway,
                                caller,
                                &mut |it| tell_repairs(notes, at, it),
                                &ACTION_KEYS,
                                &ACTION,
                                one,
                            )
                        })
                        .collect(),
                    other => other,
                };
            }
            gateway.run_parallel(caller, read::<ParallelArguments>(notes, at, arguments)?).await?
        }
        "use_skill" => gateway.use_skill(caller, read::<SkillArguments>(notes, at, arguments)?).await?,
        "call_app" => gateway.call_app(caller, read::<AppArguments>(notes, at, arguments)?).await?,
        _ => text(gateway.questions.ask_user(caller, read::<AskArguments>(notes, at, arguments)?).await?),
    })
}

/// Whether a call has a name, params that are an object, and no key that is not its own.
fn is_plain(own: &[&str], call: &Value) -> bool {
    call.as_object().is_some_and(|fields| {
        fields.get("name").is_some_and(Value::is_string)
            && fields.get("params").is_some_and(Value::is_object)
            && fields.keys().all(|key| own.contains(&key.as_str()))
    })
}

/// One call as models write it, under the keys of its own: opened first, so that nothing in it is lost.
fn one_call(
    gateway: &Gateway,
    caller: &Caller,
    tell: &mut dyn FnMut(Vec<String>),
    own: &[&str],
    schema: &Schema,
    given: Value,
) -> Value {
    // The strict reading comes first.
    if is_plain(own, &given) {
        return given;
    }
    let takes = |tool: &str, param: &str| gateway.gate(&caller.session).takes(tool, param);
    let snapshot = gateway.snapshot();
    let is_server = |given: &str| {
        let folded = name::fold(given);
        snapshot.catalog.servers().keys().any(|server| name::fold(server) == folded)
    };
    let tools = arguments::Tools { takes: &takes, is_server: &is_server };
    let (opened, changes) = arguments::opened(own, given);
    tell(changes);
    let Value::Object(fields) = opened else { return opened };
    let (read, changes) = arguments::call(own, fields, tools);
    tell(changes);
    if read.contains_key("name") {
        return Value::Object(read);
    }
    // The name is under a key that is nearly its own; the params may still stand beside it.
    match schema.read(Value::Object(read.clone())) {
        Ok(Reading { params, repaired }) => {
            tell(repaired);
            let (read, changes) = arguments::call(own, params, tools);
            tell(changes);
            Value::Object(read)
        }
        Err(_) => Value::Object(read),
    }
}

/// The arguments of a meta-tool under its own names.
fn named(notes: &mut Vec<Value>, at: usize, arguments: Map<String, Value>) -> Map<String, Value> {
    let own: Vec<&str> = META[at].names.iter().map(String::as_str).collect();
    let (arguments, changes) = arguments::named(NAMES[at], &own, arguments);
    tell_repairs(notes, at, changes);
    arguments
}

/// Tells with the answer what was repaired in the arguments of a meta-tool, and what was not understood.
fn tell_repairs(notes: &mut Vec<Value>, at: usize, changes: Vec<String>) {
    if changes.is_empty() {
        return;
    }
    let changes = changes.into_iter().map(Value::String);
    match notes.last_mut().and_then(|note| note["changes"].as_array_mut()) {
        Some(told) => told.extend(changes),
        None => {
            let changes: Vec<Value> = changes.collect();
            notes.push(json!({ "kind": "arguments_repaired", "tool": NAMES[at], "changes": changes }));
        }
    }
}

/// Reads the arguments of a meta-tool, as leniently as those of any tool.
fn read<T: DeserializeOwned>(
    notes: &mut Vec<Value>,
    at: usize,
    arguments: Map<String, Value>,
) -> Result<T, Fault> {
    let tool = &META[at];
    let Reading { params, repaired } = tool.schema.read(Value::Object(arguments)).map_err(|misfit| {
        let call = json!({ "tool": NAMES[at], "arguments": misfit.example });
        let fault = Fault::new(
            Code::InvalidParams,
            format!(
                "The arguments do not fit `{}`: {}. It takes {}.",
                NAMES[at],
                misfit.faults.join("; "),
                tool.schema.signature(NAMES[at])
            ),
        )
        .details(json!({ "corrected_call": call }));
        // Arguments of which nothing is left fit, and ask for nothing.
        let helps = misfit.example_fits && !misfit.example.is_empty();
        if helps { fault.next(NAMES[at], Value::Object(misfit.example)) } else { fault }
    })?;
    tell_repairs(notes, at, repaired);
    serde_json::from_value(Value::Object(params)).map_err(|error| {
        Fault::new(Code::InvalidParams, format!("The arguments do not fit `{}`: {error}.", NAMES[at]))
    })
}

fn raw_definitions() -> Vec<Value> {
    let text = |about: &str| json!({ "type": "string", "description": about });
    let object = |properties: Value, required: &[&str]| {
        let mut schema = json!({ "type": "object", "properties": properties });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    };
    let reads = json!({ "readOnlyHint": true });
    let always = json!({ "anthropic/alwaysLoad": true });
    vec![
        json!({
            "name": "search_tools",
            "description": "Find the right tool by meaning, in plain words, among all tools of the user's MCP servers: files, git and code hosts, web, databases, mail, calendars, time, memory and every product connected here. None of them is listed elsewhere, so search whenever a step needs something outside of this chat, before saying that it cannot be done. Search once per step and name the product: \"create a github issue\", not the whole task. Gives names to run with execute_tool, with signature and risk. Try other words if confidence is low.",
            "inputSchema": object(json!({
                "query": text("What the tool should do; English works best"),
                "category": text("Only this server or group"),
                "limit": { "type": "integer", "minimum": 1, "maximum": 50, "default": 5 },
                "detail": { "type": "string", "enum": ["name", "signature", "full"], "default": "signature" },
                "max_risk": { "type": "string", "enum": ["low", "medium", "high"] },
            }), &[]),
            "annotations": reads,
            "_meta": always,
        }),
        json!({
            "name": "get_tool",
            "description": "Read everything about a tool found by search: whole description, exact input schema, risk, and a call to copy. Needed only when the signature is not enough.",
            "inputSchema": object(json!({
                "name": text("Tool name such as files.read_file"),
                "names": { "type": "array", "items": { "type": "string" }, "maxItems": 5 },
            }), &[]),
            "annotations": reads,
        }),
        json!({
            "name": "execute_tool",
            "description": "Run a tool of any connected server by the name that search_tools gave, with its params. Gives the server's own result. A call that takes long goes on in the background and gives a task_id; a result too large to show is kept and gives a ref. A failed call says what to do next.",
            "inputSchema": object(json!({
                "name": text("Tool name"),
                "params": { "type": "object", "description": "The tool's own params", "default": {} },
                "timeout_ms": { "type": "integer", "minimum": 1, "description": "Hard limit" },
                "background": { "type": "boolean", "description": "Do not wait for the result", "default": false },
                "select": text("jq filter on the result, to read only what is needed"),
            }), &["name"]),
            "_meta": always,
            "execution": { "taskSupport": "optional" },
        }),
        json!({
            "name": "list_categories",
            "description": "See what is connected: every server and group of tools with its description, size and state.",
            "inputSchema": object(json!({}), &[]),
            "annotations": reads,
        }),
        json!({
            "name": "browse_category",
            "description": "Page through all tools of one server or group, by name, when a search does not find what must be there.",
            "inputSchema": object(json!({
                "category": text("Server or group"),
                "page": { "type": "integer", "minimum": 1, "default": 1 },
                "page_size": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20 },
                "prefix": text("Only names that begin so"),
            }), &["category"]),
            "annotations": reads,
        }),
        json!({
            "name": "run_parallel",
            "description": "Run several tools in one go: independent ones at the same time, dependent ones as a graph. {{id.path}} in params puts an earlier action's result in without reading it; `after` only waits. One failure does not touch the others.",
            "inputSchema": object(json!({
                "actions": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 50,
                    "items": object(json!({
                        "id": text("Name for {{id...}}; its number if absent"),
                        "name": text("Tool name"),
                        "params": { "type": "object" },
                        "after": { "type": "array", "items": { "type": "string" } },
                        "timeout_ms": { "type": "integer", "minimum": 1 },
                        "select": text("jq filter on its result"),
                    }), &["name"]),
                },
                "max_concurrency": { "type": "integer", "minimum": 1, "maximum": 50 },
                "fail_fast": { "type": "boolean", "default": false },
            }), &["actions"]),
            "execution": { "taskSupport": "optional" },
        }),
        json!({
            "name": "use_skill",
            "description": "Get step-by-step instructions for a kind of task: the user's skills and the prompts of the servers. Without command: the list, or the best matches for query. Follow the text that a skill gives.",
            "inputSchema": object(json!({
                "command": text("Skill name, such as release-notes or server/prompt"),
                "query": text("What you want to do"),
                "file": text("A file beside the skill"),
                "arguments": { "description": "What the skill or prompt takes: text or an object" },
            }), &[]),
            "annotations": reads,
        }),
        json!({
            "name": "call_app",
            "description": "Run an app: a workflow of tool calls that the user has set up. Without app_id: the list.",
            "inputSchema": object(json!({
                "app_id": text("App"),
                "input": { "description": "What the app takes: text or an object" },
                "timeout": { "type": "integer", "minimum": 1, "maximum": 3600, "default": 120, "description": "Seconds" },
            }), &[]),
            "execution": { "taskSupport": "optional" },
        }),
        json!({
            "name": "ask_user",
            "description": "Ask the user a question, a choice, a form, or to approve or edit content, and get the answer. If the status is needs_user, ask in the chat and call again with token and answer. Never ask for passwords or keys.",
            "inputSchema": object(json!({
                "question": text("The question"),
                "content": text("Text to approve or edit"),
                "choices": { "type": "array", "items": { "type": "string" } },
                "allow_multiple": { "type": "boolean" },
                "form": { "type": "object", "description": "Flat JSON Schema of the fields" },
                "default": { "description": "Answer if the user gives none" },
                "timeout": { "type": "integer", "minimum": 1, "default": 300, "description": "Seconds" },
                "token": text("From needs_user"),
                "answer": { "description": "What the user said, with token" },
            }), &[]),
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nine_are_small_plain_and_in_order() {
        let all = definitions();
        let names: Vec<&str> = all.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!(names, NAMES);
        let size = json!(all).to_string().len();
        assert!(size < 6_000, "{size} bytes");
        for tool in &all {
            assert!(tool["description"].as_str().unwrap().chars().count() < 1_000);
            check_plain(&tool["inputSchema"]);
        }
        insta::assert_json_snapshot!(all);
    }

    /// Every array has `items`; no combinators.
    fn check_plain(schema: &Value) {
        if let Value::Object(fields) = schema {
            assert!(!fields.contains_key("anyOf") && !fields.contains_key("oneOf"));
            assert!(fields.get("type") != Some(&json!("array")) || fields.contains_key("items"), "{schema}");
            fields.values().for_each(check_plain);
        }
    }
}
