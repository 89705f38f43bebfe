//! The nine meta-tools: what a client sees of Nonet, and the way from a `tools/call` to an operation.
//!
//! The definitions are constant, because clients cache prompts based on them. A call of any other name is
//! routed as if it were an `execute_tool`.

mod arguments;
mod instructions;
mod read;
mod tools;
mod tools_list;

use std::sync::{Arc, LazyLock};

use nonet_parts::jobs::Job;
use nonet_text::{
    fault::Fault,
    results::{CallResult, json_len},
};
use rmcp::model::ErrorData;
use serde_json::{Map, Value};

pub use self::{
    instructions::instructions,
    tools_list::{list_can_change, listed_tools, mirrored_schema},
};
use self::{
    read::{MetaCall, MetaTool},
    tools::META,
};
use nonet_core::{Gate, Gateway, Interrupt, call::CallRequest};
use nonet_state::session::Caller;

/// The meta-tools, in the order of `tools/list`.
pub const NAMES: [&str; 9] = nonet_text::name::META_TOOLS;

/// The outcome of a meta-tool's call.
#[derive(Debug)]
pub enum MetaAnswer {
    /// The result of the call.
    Result(CallResult),
    /// The call continues as a task, which the client follows.
    Task(Arc<Job>),
    /// The server's own error, if its answer is passed on unchanged.
    Refused(Box<ErrorData>),
}

/// Whether a meta-tool changes nothing.
pub fn only_reads(tool: &str) -> bool {
    matches!(tool, "search_tools" | "get_tool" | "list_categories" | "browse_category")
}

/// Returns the nine definitions as `tools/list` shows them.
pub fn definitions() -> Vec<Value> {
    META.iter().map(|tool| tool.definition.clone()).collect()
}

/// Returns the size of the definitions of all servers' tools and of the nine, as bytes of JSON.
pub fn saving(gateway: &Gateway) -> (usize, usize) {
    static NINE: LazyLock<usize> = LazyLock::new(|| definitions().iter().map(json_len).sum());
    (gateway.publisher.snapshot().bytes(), *NINE)
}

/// Answers a `tools/call`.
pub async fn call(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    name: &str,
    arguments: Map<String, Value>,
) -> MetaAnswer {
    let _place = match caller.account.request() {
        Ok(place) => place,
        Err(exhausted) => return MetaAnswer::Result(Fault::from(exhausted).to_result().into()),
    };
    gateway.publisher.listed().await;
    let find = |name: &str| META.iter().find(|tool| tool.name == name);
    let (tool, verbatim): (Option<&'static MetaTool>, bool) = match find(name) {
        Some(tool) => (Some(tool), false),
        None => {
            let gate = Gate::of(&gateway.publisher, &caller.session);
            match gate.is_verbatim(name) {
                true => (None, true),
                false => (gate.meta_tool(name).and_then(find), false),
            }
        }
    };
    let mut notices = Vec::new();
    let outcome = match tool {
        Some(tool) => {
            let mut call = MetaCall { tool, gateway, caller, arguments, changes: Vec::new() };
            let outcome = (tool.run)(&mut call).await;
            notices = call.notices();
            outcome
        }
        None => {
            let params = Value::Object(arguments);
            let of_ui = caller.shows_ui;
            let request =
                CallRequest { name: name.into(), params, verbatim, of_ui, ..CallRequest::default() };
            gateway.calls.execute(caller, request).await
        }
    };
    let (owner, budget) = (caller.owner(), caller.limits.max_result_bytes);
    let result = match outcome {
        Ok(result) => result,
        Err(Interrupt::Fault(fault)) => fault.to_result().into(),
        Err(Interrupt::Task(job)) => return MetaAnswer::Task(job),
        Err(Interrupt::Refused(error)) => {
            return MetaAnswer::Refused(Box::new(
                gateway.keeping.kept.fit_error(&owner, *error, budget).await,
            ));
        }
    };
    let mut result = gateway.keeping.kept.fit_own(&owner, result, budget).await;
    // A cancelled request has no reader for its answer.
    if !caller.cancel.is_cancelled() && !verbatim {
        gateway.sessions.mail.deliver(caller, &mut result, notices).await;
    }
    MetaAnswer::Result(result)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    /// Checks what the inspector's `--strict` and strict clients demand: one type for every schema, `items`
    /// for every array, no combinators.
    fn check_plain(schema: &Value) {
        assert!(schema["type"].is_string(), "{schema}");
        assert!(["anyOf", "oneOf", "allOf"].iter().all(|key| schema.get(key).is_none()), "{schema}");
        assert!(schema["type"] != "array" || schema.get("items").is_some(), "{schema}");
        let properties = schema["properties"].as_object().into_iter().flat_map(Map::values);
        properties.chain(schema.get("items")).for_each(check_plain);
    }

    #[test]
    fn a_number_below_one_is_refused_though_no_definition_says_so() {
        let check = |name: &str, arguments: Value| {
            let tool = META.iter().find(|tool| tool.name == name).expect("it is one of the nine");
            assert!(tool.schema.read(arguments.clone()).is_err(), "{name} {arguments}");
        };
        check("search_tools", json!({ "query": "q", "limit": 0 }));
        check("browse_category", json!({ "category": "c", "page": 0 }));
        check("execute_tool", json!({ "name": "a.b", "timeout_ms": 0 }));
        check("call_app", json!({ "app_id": "a", "input": "i", "timeout": -1 }));
        assert!(!json!(definitions()).to_string().contains("minimum"));
    }

    #[test]
    fn a_name_and_params_fit_execute_tool_as_they_are() {
        let tool = META.iter().find(|tool| tool.name == "execute_tool").expect("it is one of the nine");
        for arguments in [
            json!({ "name": "", "params": {} }),
            json!({ "params": { "name": { "params": [1] }, "background": 1 }, "name": " a.b " }),
        ] {
            let read = tool.schema.read(arguments.clone()).expect("it fits");
            assert_eq!((Value::Object(read.params), read.repaired.len()), (arguments, 0));
        }
    }

    #[test]
    fn careful_clients_see_which_of_the_nine_only_read() {
        for tool in definitions() {
            let expected = match tool["name"].as_str() {
                Some("execute_tool" | "run_parallel" | "call_app") => Value::Null,
                Some("ask_user") => json!({ "destructiveHint": false, "openWorldHint": false }),
                _ => json!({ "readOnlyHint": true }),
            };
            assert_eq!(tool["annotations"], expected, "{tool}");
        }
    }
}
