//! The category `gateway`: Nonet's own tools, found by search and run by `execute_tool`.
//!
//! [`TOOLS`] is the registry: one value per tool holds its definition, its access and its handler. A profile
//! allows every own tool that it does not deny by name; whatever a tool reaches is checked again at the call.

mod background_run;
mod describe_api;
pub(super) mod fetch_result;
mod load_tools;
mod memory_facts;
mod memory_work;
mod read_resource;
pub(super) mod run_graph;
mod run_script;
mod runtime_server;
mod save_script;
mod schedule;
mod status;
pub(super) mod watch;

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

pub use memory_work::WorkSummary;

use nonet_base::text::clip;
use nonet_config::{Config, GatewaySettings};
use nonet_schema::bare;
use nonet_servers::catalog::{GATEWAY, Listing, Tool};
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
};

use super::Gateway;
use nonet_state::session::Caller;

/// Runs an own tool. Boxed, because a background launch is a call inside a call.
type Handler =
    for<'a> fn(&'a Arc<Gateway>, &'a Caller, Map<String, Value>) -> BoxFuture<'a, Result<Value, Fault>>;

/// One of Nonet's own tools.
struct OwnTool {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    /// The properties of its input schema.
    properties: fn() -> Value,
    required: &'static [&'static str],
    access: Access,
    /// Aliases of its params.
    aliases: Aliases,
    run: Handler,
}

/// The access of an own tool, which determines its annotations and its risk.
#[derive(Clone, Copy)]
enum Access {
    /// Only reads: low risk.
    ReadOnly,
    /// Changes state but destroys nothing: medium risk.
    Reversible,
    /// Can do harm: high risk. The user approves every call by answering this question.
    Destructive(Question),
}

/// Builds the question for the user, or refuses a call that would fail anyway.
type Question = fn(&Gateway, &Caller, &Map<String, Value>) -> Result<String, Fault>;

/// All own tools, by name.
static TOOLS: [OwnTool; 30] = [
    runtime_server::ADD,
    background_run::TOOL,
    schedule::CANCEL,
    describe_api::TOOL,
    fetch_result::TOOL,
    runtime_server::FIND,
    memory_facts::FORGET,
    load_tools::TOOL,
    read_resource::TOOL,
    memory_facts::RECALL,
    memory_facts::REMEMBER,
    schedule::REMIND,
    runtime_server::REMOVE,
    run_graph::TOOL,
    run_script::TOOL,
    save_script::TOOL,
    schedule::SCHEDULE,
    schedule::LIST,
    memory_work::SET_GOAL,
    status::TOOL,
    memory_work::TASK_CREATE,
    memory_work::TASK_LIST,
    memory_work::TASK_UPDATE,
    watch::HISTORY,
    watch::LIST,
    watch::PAUSE,
    watch::RESUME,
    watch::START,
    watch::STATUS,
    watch::STOP,
];
/// Tools that a key of `[gateway]` removes.
struct ToolSwitch {
    key: &'static str,
    is_on: fn(&GatewaySettings) -> bool,
    tools: &'static [&'static str],
    /// What is off without them.
    off: &'static str,
}

static SWITCHED: [ToolSwitch; 3] = [
    ToolSwitch {
        key: "memory",
        is_on: |settings| settings.memory,
        tools: &["forget", "recall", "remember", "set_goal", "task_create", "task_list", "task_update"],
        off: "Nonet remembers nothing",
    },
    ToolSwitch {
        key: "scheduler",
        is_on: |settings| settings.scheduler,
        tools: &["cancel_schedule", "remind", "schedule", "schedule_list"],
        off: "Nothing runs at a time",
    },
    ToolSwitch {
        key: "watchers",
        is_on: |settings| settings.watchers,
        tools: &[
            "watch_history",
            "watch_list",
            "watch_pause",
            "watch_resume",
            "watch_start",
            "watch_status",
            "watch_stop",
        ],
        off: "No watch makes a check",
    },
];

/// The tools that `allow_runtime_servers` adds.
const OF_RUNTIME: [&str; 3] = ["add_server", "find_server", "remove_server"];

/// Whether the params of a tool hold the text of a program, in which templates are text.
pub(super) fn takes_code(tool: &Tool) -> bool {
    &*tool.server == GATEWAY && ["run_script", "save_script"].contains(&&*tool.name)
}

impl OwnTool {
    /// Whether the configuration enables the tool.
    fn is_given(&self, settings: &GatewaySettings) -> bool {
        SWITCHED.iter().all(|one| (one.is_on)(settings) || !one.tools.contains(&self.name))
            && (settings.allow_runtime_servers || !OF_RUNTIME.contains(&self.name))
    }

    fn find(name: &str) -> Option<&'static Self> {
        TOOLS.iter().find(|tool| tool.name == name)
    }

    /// Returns the definition as a server would list it.
    fn definition(&self) -> Value {
        let mut schema = json!({ "type": "object", "properties": (self.properties)() });
        if !self.required.is_empty() {
            schema["required"] = json!(self.required);
        }
        schema["additionalProperties"] = json!(false);
        json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": schema,
            "annotations": match self.access {
                Access::ReadOnly => json!({ "readOnlyHint": true }),
                Access::Reversible => json!({ "readOnlyHint": false, "destructiveHint": false }),
                Access::Destructive(_) => json!({ "readOnlyHint": false, "destructiveHint": true }),
            },
        })
    }
}

/// Lists Nonet's own tools.
pub(super) fn listing(settings: &GatewaySettings) -> Listing {
    let tools = TOOLS.iter().filter(|tool| tool.is_given(settings));
    let parts = [
        (settings.memory, "facts to remember, goal and tasks"),
        (true, "scripts, calls in the background"),
        (settings.watchers, "watches"),
        (settings.scheduler, "schedules and reminders"),
        (true, "kept results, state of the servers"),
    ];
    let parts: Vec<&str> = parts.iter().filter(|(is_on, _)| *is_on).map(|(_, part)| *part).collect();
    let about = format!("Nonet itself: {}", parts.join(", "));
    Listing { tools: tools.map(|tool| Arc::new(tool.definition())).collect(), about, ..Listing::default() }
}

/// Explains why the configuration does not offer an own tool, given the tool's folded name.
pub(super) fn taken_away(folded: &str, config: &Config) -> Option<Fault> {
    let name = folded.strip_prefix("gateway_").unwrap_or(folded);
    let settings = &config.gateway;
    if let Some(tool) = OF_RUNTIME.iter().find(|tool| **tool == name && !settings.allow_runtime_servers) {
        return Some(runtime_server::not_allowed(tool, config));
    }
    let switched = SWITCHED.iter().find(|one| one.tools.contains(&name) && !(one.is_on)(settings))?;
    let message = format!(
        "`gateway.{name}` is switched off: `[gateway]` in the user's configuration has `{} = false`. {} until the user changes that.",
        switched.key, switched.off
    );
    Some(Fault::new(FaultCode::Forbidden, message))
}

/// Returns the approval question of a tool that always asks, or the fault of a call that would fail.
pub(super) fn question(
    gateway: &Gateway,
    caller: &Caller,
    tool: &Tool,
    params: &Map<String, Value>,
) -> Option<Result<String, Fault>> {
    let own = OwnTool::find(&tool.name).filter(|_| &*tool.server == GATEWAY)?;
    match own.access {
        Access::Destructive(question) => Some(question(gateway, caller, params)),
        Access::ReadOnly | Access::Reversible => None,
    }
}

/// Renames aliased params of an own tool, and reads values in people's words. Returns the changes.
pub(super) fn under_own_names(tool: &str, params: &mut Value) -> Vec<String> {
    let (Some(fields), Some(tool)) = (params.as_object_mut(), OwnTool::find(tool)) else { return Vec::new() };
    let Aliases(names) = tool.aliases;
    let mut changes = Vec::new();
    for (own, others) in names {
        let mut found = fields.keys().filter(|key| others.contains(&bare(key).as_str()));
        let (Some(key), None) = (found.next().cloned(), found.next()) else { continue };
        if fields.contains_key(*own) || names.iter().any(|(own, _)| *own == key) {
            continue;
        }
        if let Some(value) = fields.shift_remove(&key) {
            changes.push(format!("`{}` was taken as `{own}`", clip(&key, 40)));
            fields.insert((*own).into(), value);
        }
    }
    changes.extend(match tool.name {
        "add_server" => runtime_server::split_command(fields),
        "watch_start" => watch::interval_in_seconds(fields),
        _ => None,
    });
    changes
}

/// Reads the params of an own tool, which fit the tool's schema.
fn read<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T, Fault> {
    serde_json::from_value(Value::Object(params))
        .map_err(|error| Fault::new(FaultCode::InvalidParams, error.to_string()))
}

impl Gateway {
    /// Runs one of Nonet's own tools.
    pub(super) fn own_tool<'a>(
        self: &'a Arc<Self>,
        caller: &'a Caller,
        name: &str,
        params: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Value, Fault>> {
        match OwnTool::find(name) {
            Some(tool) => (tool.run)(self, caller, params),
            None => {
                let fault = Fault::new(FaultCode::UnknownTool, format!("`gateway` has no tool `{name}`."));
                std::future::ready(Err(fault)).boxed()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nonet_config::Risk;
    use nonet_servers::catalog::{Catalog, CatalogSource};

    use super::*;
    use crate::gate::always_asks;

    #[test]
    fn the_registry_defines_the_tools_and_their_risk() {
        assert!(TOOLS.is_sorted_by_key(|tool| tool.name));
        let settings = GatewaySettings { allow_runtime_servers: true, ..GatewaySettings::default() };
        let listing = Arc::new(listing(&settings));
        let own = CatalogSource { server: GATEWAY.into(), listing, settings: None };
        insta::assert_json_snapshot!(own.listing.tools);
        let catalog = Catalog::new([own], &Default::default());
        for tool in catalog.visible() {
            let own = OwnTool::find(&tool.name).unwrap();
            let (risk, read_only) = match own.access {
                Access::ReadOnly => (Risk::Low, true),
                Access::Reversible => (Risk::Medium, false),
                Access::Destructive(_) => (Risk::High, false),
            };
            assert_eq!((tool.risk, tool.read_only), (risk, read_only), "{}", tool.full);
            assert_eq!(always_asks(tool), matches!(own.access, Access::Destructive(_)), "{}", tool.full);
            for (name, _) in own.aliases.0 {
                assert!(tool.schema.names(name), "{}: {name}", tool.full);
            }
        }
    }

    #[test]
    fn the_params_have_other_names() {
        let check = |tool: &str, mut params: Value, expected: Value, told: usize| {
            assert_eq!(under_own_names(tool, &mut params).len(), told, "{tool} {params}");
            assert_eq!(params, expected, "{tool}");
        };
        check("load_tools", json!({ "name": "a.b" }), json!({ "names": "a.b" }), 1);
        check(
            "load_tools",
            json!({ "names": ["a"], "name": "b" }),
            json!({ "names": ["a"], "name": "b" }),
            0,
        );
        check("background_run", json!({ "id": "t" }), json!({ "task_id": "t" }), 1);
        check(
            "background_run",
            json!({ "tool": "a.b", "arguments": { "x": 1 } }),
            json!({ "name": "a.b", "params": { "x": 1 } }),
            2,
        );
        check("fetch_result", json!({ "reference": "r" }), json!({ "ref": "r" }), 1);
        check("remember", json!({ "fact": "f", "tag": "t" }), json!({ "content": "f", "tags": "t" }), 2);
        check("recall", json!({ "q": "f" }), json!({ "query": "f" }), 1);
        check(
            "task_update",
            json!({ "id": "t", "state": "completed" }),
            json!({ "task_id": "t", "status": "completed" }),
            2,
        );
        check("status", json!({ "id": "r" }), json!({ "id": "r" }), 0);
        check("watch_start", json!({ "interval": "30s" }), json!({ "interval": 30 }), 1);
        check("watch_start", json!({ "every": "two minutes" }), json!({ "interval": 120 }), 2);
        check("watch_start", json!({ "interval": "soon" }), json!({ "interval": "soon" }), 0);
        check(
            "add_server",
            json!({ "command": "python3 'my server.py'", "args": ["-v"] }),
            json!({ "command": "python3", "args": ["my server.py", "-v"] }),
            1,
        );
        check("add_server", json!({ "command": "npx" }), json!({ "command": "npx" }), 0);
        // What is no command line stays as it is.
        check("add_server", json!({ "command": "a 'b" }), json!({ "command": "a 'b" }), 0);
        check(
            "add_server",
            json!({ "command": "a b", "args": 1 }),
            json!({ "command": "a b", "args": 1 }),
            0,
        );
    }
}
