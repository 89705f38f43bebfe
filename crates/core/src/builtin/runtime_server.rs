//! `gateway.add_server` and `gateway.remove_server`: servers that a client adds.

use std::path::Path;

use futures::FutureExt;
use nonet_config::{Config, shell};
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
};
use serde_json::{Map, Value, json};

use super::{Access, OwnTool, read};
use crate::{
    call::{answer_of, text_result},
    runtime_servers::MAX_TEXT,
};

pub(super) const ADD: OwnTool = OwnTool {
    name: "add_server",
    title: "Add an MCP server",
    description: "Starts or connects to another MCP server and adds its tools, for this session or, with persist, for good. Give one of command (with args and env), url (with headers) or openapi (a document's file or address, with headers). The user approves each one. Texts are literal: ${VAR} is not expanded.",
    properties: || {
        let text = |description: &str| json!({ "type": "string", "minLength": 1, "maxLength": MAX_TEXT, "description": description });
        let texts = |description: &str| {
            json!({
                "type": "object",
                "additionalProperties": { "type": "string", "maxLength": MAX_TEXT },
                "maxProperties": 50,
                "description": description,
            })
        };
        let list = |description: &str| {
            json!({
                "type": "array",
                "items": { "type": "string", "maxLength": MAX_TEXT },
                "maxItems": 100,
                "description": description,
            })
        };
        json!({
            "name": { "type": "string", "description": "Name of the server: a-z, 0-9, single - or _" },
            "command": text("Program to start"),
            "args": list("Its arguments"),
            "env": texts("Variables for it"),
            "url": text("Address of a remote MCP server"),
            "headers": texts("Headers of each request"),
            "openapi": text("File or address of an OpenAPI document, instead of an MCP server"),
            "tags": list("Words that find its tools"),
            "persist": { "type": "boolean", "description": "Write it to servers.toml, for all clients; else it ends with this session" },
        })
    },
    required: &["name"],
    access: Access::Destructive(|gateway, caller, params| gateway.question_of_adding(caller, params)),
    aliases: Aliases(&[
        ("name", &["server", "servername", "id"]),
        ("command", &["cmd", "program"]),
        ("args", &["arguments", "argv"]),
        ("env", &["environment", "variables"]),
        ("url", &["address", "endpoint", "uri"]),
        ("headers", &["httpheaders"]),
        ("openapi", &["openapiurl", "spec"]),
        ("persist", &["permanent", "save"]),
    ]),
    run: |gateway, caller, params| {
        async move { Ok(text_result(gateway.add_server(caller, &params).await?.to_string())) }.boxed()
    },
};

pub(super) const FIND: OwnTool = OwnTool {
    name: "find_server",
    title: "Find an MCP server in the registry",
    description: "Finds MCP servers that are not connected yet, by words of their name or description. Propose one with its next_step: the user approves it. One that needs values is added by the user, with the command in add.",
    properties: || {
        json!({
            "query": { "type": "string", "minLength": 1, "maxLength": 200, "description": "A word or two, such as postgres" },
            "limit": { "type": "integer", "minimum": 1, "maximum": 20, "description": "How many at most (5)" },
        })
    },
    required: &["query"],
    access: Access::ReadOnly,
    aliases: Aliases(&[("query", &["words", "q", "search", "name"]), ("limit", &["max", "count"])]),
    run: |gateway, _, params| {
        async move {
            let FindArguments { query, limit } = read(params)?;
            let found = gateway.servers.find_in_registry(query.trim(), limit.unwrap_or(5)).await;
            let servers = found.map_err(|why| Fault::new(FaultCode::UpstreamError, format!("{why}.")))?;
            Ok(answer_of(&json!({ "servers": &*servers })))
        }
        .boxed()
    },
};

pub(super) const REMOVE: OwnTool = OwnTool {
    name: "remove_server",
    title: "Remove an added MCP server",
    description: "Stops a server that gateway.add_server has added and removes its tools; one added with persist leaves servers.toml. The user approves it.",
    properties: || json!({ "name": { "type": "string", "description": "Name of the server" } }),
    required: &["name"],
    access: Access::Destructive(|gateway, caller, params| {
        let NameArguments { name } = read(params.clone())?;
        gateway.question_of_removing(caller, name.trim())
    }),
    aliases: Aliases(&[("name", &["server", "servername", "id"])]),
    run: |gateway, caller, params| {
        async move {
            let NameArguments { name } = read(params)?;
            Ok(text_result(gateway.remove_server(caller, name.trim()).await?.to_string()))
        }
        .boxed()
    },
};

/// Splits a command line that was given as the command, unless there is a file of that name. Returns the
/// change.
pub(super) fn split_command(params: &mut Map<String, Value>) -> Option<String> {
    let line = params.get("command")?.as_str()?.trim().to_string();
    if !line.contains(char::is_whitespace) || Path::new(&line).exists() {
        return None;
    }
    let mut words = shell::words(&line).ok()?;
    let more = match params.get("args") {
        None | Some(Value::Null) => Vec::new(),
        Some(arg @ Value::String(_)) => vec![arg.clone()],
        Some(args) => args.as_array()?.clone(),
    };
    if words.is_empty() {
        return None;
    }
    params.insert("command".into(), json!(words.remove(0)));
    let args: Vec<Value> = words.into_iter().map(Value::from).chain(more).collect();
    params.insert("args".into(), json!(args));
    Some("`command` was a command line, taken as `command` and `args`".into())
}

#[derive(serde::Deserialize)]
struct FindArguments {
    query: String,
    limit: Option<usize>,
}

#[derive(serde::Deserialize)]
struct NameArguments {
    name: String,
}

/// Builds the fault for a configuration that does not allow such servers.
pub(super) fn not_allowed(tool: &str, config: &Config) -> Fault {
    let message = format!(
        "`gateway.{tool}` is switched off. The user can set `allow_runtime_servers = true` in [gateway] of {}, or add a server with `{} NAME -- COMMAND`; Nonet reloads the changed file at once.",
        config.file.display(),
        shell::nonet("add", &config.file),
    );
    Fault::new(FaultCode::Forbidden, message)
}
