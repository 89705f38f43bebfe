//! `gateway.run_graph`: keeps the actions of a `run_parallel` under a name for the session, and runs them
//! again.

use std::sync::Arc;

use futures::FutureExt;
use nonet_base::{json::set_member, text::clip};
use nonet_config::LONGEST_TIME;
use nonet_servers::catalog::{GATEWAY, Tool};
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode, NextStep},
    name,
    results::value_of,
};
use serde_json::{Map, Value, json};

use super::{Access, OwnTool, read};
use crate::{Gateway, ParallelArguments, call::text_result, errands::bounded, interrupt::Interrupt};
use nonet_state::session::{Caller, TaskMode};

pub(super) const TOOL: OwnTool = OwnTool {
    name: "run_graph",
    title: "Keep and repeat a graph of calls",
    description: "Keeps the actions of run_parallel under a name for this session, to run the same steps again without sending them. Four modes: keep {name, actions}; run {name, input}, where {{input.x}} in the actions takes a value of the input; run once {actions}; list {}. gateway.schedule runs a kept graph later or regularly, by its name.",
    properties: || {
        json!({
            "name": { "type": "string", "minLength": 1, "maxLength": 100, "description": "Name of the graph" },
            "actions": { "type": "array", "items": { "type": "object" }, "description": "Actions, as run_parallel takes them" },
            "input": { "description": "What {{input}} is in this run" },
            "max_concurrency": { "type": "integer", "minimum": 1, "maximum": 50, "description": "Calls at a time" },
            "fail_fast": { "type": "boolean", "description": "Start nothing after a failure" },
        })
    },
    required: &[],
    access: Access::Reversible,
    aliases: Aliases(&[
        ("name", &["graph", "graphname", "saveas"]),
        ("actions", &["steps", "calls", "tasks"]),
    ]),
    run: |gateway, caller, params| async move { run(gateway, caller, read(params)?).await }.boxed(),
};

/// The arguments: a name, and the arguments of a `run_parallel`.
#[derive(serde::Deserialize)]
struct GraphArguments {
    name: Option<String>,
    #[serde(flatten)]
    graph: Map<String, Value>,
}

/// Whether a tool is this one.
pub(crate) fn is_graph(tool: &Tool) -> bool {
    &*tool.server == GATEWAY && &*tool.name == TOOL.name
}

/// Returns the call that lists the kept graphs.
fn list_call() -> NextStep {
    NextStep::own(TOOL.name, json!({}))
}

async fn run(gateway: &Arc<Gateway>, caller: &Caller, arguments: GraphArguments) -> Result<Value, Fault> {
    let GraphArguments { name, graph } = arguments;
    match (name, graph.contains_key("actions")) {
        (Some(name), true) => keep(gateway, caller, name.trim(), graph).await,
        (None, false) => {
            let listed = caller.session.graphs();
            let listed: Vec<Value> = listed
                .iter()
                .map(|(name, graph)| json!({ "name": name, "actions": graph["actions"] }))
                .collect();
            Ok(text_result(json!({ "graphs": listed }).to_string()))
        }
        (name, _) => {
            let params = kept_graph(caller, name.as_deref(), graph)?;
            run_once(gateway, caller, graph_of(params)?).await
        }
    }
}

/// Returns the params of a graph: those given, over those kept under a name if there is a name without
/// actions.
pub(crate) fn kept_graph(
    caller: &Caller,
    name: Option<&str>,
    given: Map<String, Value>,
) -> Result<Map<String, Value>, Fault> {
    let Some(name) = name.map(str::trim).filter(|_| !given.contains_key("actions")) else { return Ok(given) };
    if let Some(mut kept) = caller.session.graph(name) {
        kept.extend(given);
        return Ok(kept);
    }
    let message = format!("No graph is kept as `{}` in this session.", clip(name, 100));
    let all = caller.session.graphs();
    let near = name::nearest(name, all.keys().map(|name| name.as_str()), 3);
    Err(Fault::new(FaultCode::NotFound, message).then(list_call()).suggest(near))
}

/// Reads the params of a graph.
pub(crate) fn graph_of(params: Map<String, Value>) -> Result<ParallelArguments, Fault> {
    serde_json::from_value(Value::Object(params))
        .map_err(|error| Fault::new(FaultCode::InvalidParams, format!("The graph cannot be read: {error}.")))
}

async fn keep(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    name: &str,
    params: Map<String, Value>,
) -> Result<Value, Fault> {
    if !caller.lasting {
        let message = "This client has no session that could keep a graph. Send the actions with run_parallel, or schedule \
                       them with gateway.schedule.";
        return Err(Fault::new(FaultCode::Forbidden, message));
    }
    bounded("actions", &json!(params))?;
    let graph = graph_of(params.clone())?;
    let count = graph.actions.len();
    gateway.apps.check_graph(caller, graph).await?;
    let mut answer = json!({ "graph": name, "actions": count });
    if caller.session.keep_graph(name, params)? {
        answer["overwritten"] = json!(true);
    }
    answer["next_step"] = json!(NextStep::own(TOOL.name, json!({ "name": name })));
    Ok(text_result(answer.to_string()))
}

async fn run_once(gateway: &Arc<Gateway>, caller: &Caller, graph: ParallelArguments) -> Result<Value, Fault> {
    if caller.run.is_some() {
        let message = "A graph does not run inside of a graph. Put the actions of both into one.";
        return Err(Fault::new(FaultCode::InvalidParams, message));
    }
    // The call of this tool has the place in the quotas, and becomes a task if it takes long.
    let mut caller = Caller { is_admitted: true, as_task: TaskMode::Never, ..caller.clone() };
    caller.limits.soft_deadline = LONGEST_TIME;
    match gateway.apps.run_parallel(&caller, graph).await {
        // Nobody reads the whole report of a graph that runs by itself.
        Ok(mut report) if caller.session.unattended => {
            if value_of(&report)["failed"].as_u64() > Some(0) {
                set_member(&mut report, "isError", true);
            }
            Ok(report)
        }
        Ok(report) => Ok(report),
        Err(Interrupt::Fault(fault)) => Err(*fault),
        Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
            Err(Fault::new(FaultCode::Internal, "The graph was not run; run its actions with run_parallel."))
        }
    }
}
