//! Protocol tasks on both sides: for clients that use them instead of a handle, and from servers that answer
//! with one.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{
    client::{Client, VERSION_KEY},
    setup::{Setup, eventually, json_of, logged, notices_of, text_of},
    web::{WebClient, http},
};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

fn shop(script: Value) -> (Setup, PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let mut script = script;
    script["call_log"] = json!(log);
    (setup.server("shop", script).gateway("soft_deadline = '500ms'"), log)
}

fn form() -> Value {
    json!({ "message": "To whom?", "requestedSchema": { "type": "object", "properties": { "to": { "type": "string" } } } })
}

fn slow() -> Value {
    json!({ "tools": [
        { "name": "slow", "on": { "delay_ms": 1_500, "text": "done" } },
        { "name": "fast", "on": { "text": "at once" } },
        { "name": "fail", "on": { "delay_ms": 1_500, "error": "out of order" } },
        { "name": "refuse", "on": { "delay_ms": 1_500, "rpc_error": { "code": -32050, "message": "closed" } } },
        { "name": "ask", "on": { "delay_ms": 1_500, "elicit": form() } },
        { "name": "hang", "on": { "hang": true } },
    ] })
}

/// A client of 2026-07-28 that declares the extension.
struct Modern(Client);

impl Modern {
    fn request(&mut self, method: &str, params: Value) -> Value {
        let mut answer =
            self.0.modern(method, params, json!({ "elicitation": {}, "extensions": { EXTENSION: {} } }));
        assert!(answer.get("result").is_some(), "no result: {answer}");
        answer["result"].take()
    }

    fn execute(&mut self, name: &str) -> Value {
        self.request("tools/call", json!({ "name": "execute_tool", "arguments": { "name": name } }))
    }

    fn get(&mut self, id: &Value) -> Value {
        self.request("tasks/get", json!({ "taskId": id }))
    }

    fn until_ready(&mut self) {
        eventually("the server is ready", || {
            let answer = self.execute("shop.fast");
            (answer["isError"] != true).then_some(())
        });
    }
}

fn modern() -> (Modern, PathBuf) {
    let (setup, log) = shop(slow());
    let mut client = Modern(setup.start_silently());
    client.until_ready();
    (client, log)
}

#[test]
fn a_client_of_the_extension_gets_a_task_for_what_takes_long_and_its_result_with_it() {
    let (mut client, _) = modern();
    let task = client.execute("shop.slow");
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{task}");
    let state = client.get(&task["taskId"]);
    assert_eq!((&state["status"], &state["resultType"]), (&json!("working"), &json!("complete")), "{state}");
    let state = eventually("the task ends", || {
        Some(client.get(&task["taskId"])).filter(|state| state["status"] != "working")
    });
    assert_eq!(state["status"], "completed", "{state}");
    assert_eq!(text_of(&state["result"]), "done");
    assert_eq!(state["result"]["resultType"], "complete");
    // No notice for a task that the client polls.
    assert_eq!(notices_of(&client.execute("shop.fast")), Vec::<Value>::new());
    // A quick call is not a task.
    assert_eq!(text_of(&client.execute("shop.fast")), "at once");
}

#[test]
fn the_servers_own_error_is_the_result_of_a_completed_task() {
    let (mut client, _) = modern();
    let task = client.execute("shop.fail");
    let state = eventually("the task ends", || {
        Some(client.get(&task["taskId"])).filter(|state| state["status"] != "working")
    });
    assert_eq!(
        (&state["status"], &state["result"]["isError"]),
        (&json!("completed"), &json!(true)),
        "{state}"
    );
}

#[test]
fn a_protocol_error_of_the_server_fails_the_task() {
    let (mut client, _) = modern();
    let task = client.execute("shop.refuse");
    let state = eventually("the task ends", || {
        Some(client.get(&task["taskId"])).filter(|state| state["status"] != "working")
    });
    assert_eq!((&state["status"], &state["error"]["code"]), (&json!("failed"), &json!(-32050)), "{state}");
    assert!(state.get("result").is_none(), "{state}");
}

#[test]
fn a_task_asks_its_client_by_its_state() {
    let (mut client, _) = modern();
    let task = client.execute("shop.ask");
    let id = &task["taskId"];
    let asked =
        eventually("the task asks", || Some(client.get(id)).filter(|state| state["status"] != "working"));
    assert_eq!(asked["status"], "input_required", "{asked}");
    let (key, request) =
        asked["inputRequests"].as_object().and_then(|all| all.iter().next()).expect("a request");
    assert!(request["params"]["message"].as_str().is_some_and(|text| text.contains("To whom?")), "{request}");
    // Another request of the client does not get the question.
    assert_eq!(text_of(&client.execute("shop.fast")), "at once");
    let answers = json!({ "other": {}, key.as_str(): { "action": "accept", "content": { "to": "Ada" } } });
    let ended = client.request("tasks/update", json!({ "taskId": id, "inputResponses": answers }));
    assert_eq!(ended["resultType"], "complete", "{ended}");
    let state = eventually("the task ends", || {
        Some(client.get(id))
            .filter(|state| state["status"] != "working" && state["status"] != "input_required")
    });
    assert_eq!(json_of(&state["result"])["content"]["to"], "Ada", "{state}");
}

#[test]
fn a_task_that_is_cancelled_reaches_the_server() {
    let (mut client, log) = modern();
    let task = client.execute("shop.hang");
    client.request("tasks/cancel", json!({ "taskId": task["taskId"] }));
    assert_eq!(client.get(&task["taskId"])["status"], "cancelled");
    eventually("the server is told", || {
        logged(&log).iter().any(|line| line.get("cancelled").is_some()).then_some(())
    });
}

#[test]
fn a_client_without_the_extension_gets_a_handle_and_may_not_ask_for_tasks() {
    let (mut client, _) = modern();
    let call = json!({ "name": "execute_tool", "arguments": { "name": "shop.slow" } });
    let answer = client.0.modern("tools/call", call, json!({}));
    let handle = json_of(&answer["result"]);
    assert_eq!(handle["state"], "running", "{answer}");
    let answer = client.0.modern("tasks/get", json!({ "taskId": handle["task_id"] }), json!({}));
    assert_eq!(answer["error"]["code"], -32021, "{answer}");
    let unknown = json!({ "taskId": "job-0" });
    let answer = client.0.modern("tasks/get", unknown, json!({ "extensions": { EXTENSION: {} } }));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

fn legacy() -> (Client, PathBuf) {
    let (setup, log) = shop(slow());
    let mut client = setup.start_silently();
    let answer = client.initialize("2025-11-25", json!({}));
    let tasks = &answer["result"]["capabilities"]["tasks"];
    assert_eq!(tasks["requests"]["tools"]["call"], json!({}), "{answer}");
    client.until_ready("shop");
    (client, log)
}

fn begin_task(client: &mut Client, tool: &str) -> Value {
    let arguments = json!({ "name": tool });
    let params = json!({ "name": "execute_tool", "arguments": arguments, "task": { "ttl": 60_000 } });
    let mut answer = client.request("tools/call", params);
    answer["result"]["task"].take()
}

#[test]
fn a_client_of_2025_11_25_gets_a_task_when_it_asks_for_one() {
    let (mut client, _) = legacy();
    for tool in client.request("tools/list", json!({}))["result"]["tools"].as_array().expect("tools") {
        let runs =
            ["execute_tool", "run_parallel", "call_app"].contains(&tool["name"].as_str().expect("a name"));
        assert_eq!(tool["execution"]["taskSupport"] == "optional", runs, "{tool}");
    }
    let task = begin_task(&mut client, "shop.slow");
    assert_eq!(task["status"], "working", "{task}");
    let id = json!({ "taskId": task["taskId"] });
    let state = client.request("tasks/get", id.clone())["result"].take();
    assert_eq!((&state["taskId"], &state["status"]), (&task["taskId"], &json!("working")), "{state}");
    let list = client.request("tasks/list", json!({}))["result"].take();
    assert_eq!(list["tasks"][0]["taskId"], task["taskId"], "{list}");
    // Waits for the end.
    let result = client.request("tasks/result", id.clone())["result"].take();
    assert_eq!(text_of(&result), "done");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"], id);
    assert_eq!(client.request("tasks/get", id)["result"]["status"], "completed");
}

#[test]
fn a_task_of_2025_11_25_can_fail_be_cancelled_and_be_over_at_once() {
    let (mut client, _) = legacy();
    let failed = begin_task(&mut client, "shop.fail");
    let hanging = begin_task(&mut client, "shop.hang");
    let unknown = begin_task(&mut client, "shop.nothing");
    let id = json!({ "taskId": hanging["taskId"] });
    assert_eq!(client.request("tasks/cancel", id)["result"]["status"], "cancelled");
    let result = client.request("tasks/result", json!({ "taskId": failed["taskId"] }))["result"].take();
    assert_eq!((text_of(&result), &result["isError"]), ("out of order", &json!(true)));
    let state = client.request("tasks/get", json!({ "taskId": failed["taskId"] }))["result"].take();
    assert_eq!(state["status"], "failed", "{state}");
    // A refused call is a failed task.
    let result = client.request("tasks/result", json!({ "taskId": unknown["taskId"] }))["result"].take();
    assert_eq!(json_of(&result)["error"]["code"], "unknown_tool", "{result}");
    let answer = client.request("tasks/get", json!({ "taskId": "job-0" }));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[test]
fn a_task_of_2025_11_25_works_over_http() {
    let site = shop(slow()).0.serve();
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
    });
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let reply = http(&site.address, "POST", "/mcp", &[], &hello.to_string());
    assert!(reply.result()["capabilities"]["tasks"]["requests"]["tools"]["call"].is_object(), "{reply:?}");
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    let arguments = json!({ "name": "shop.slow" });
    let params = json!({ "name": "execute_tool", "arguments": arguments, "task": { "ttl": 60_000 } });
    let task = client.request("tools/call", params).result()["task"].take();
    assert_eq!(task["status"], "working", "{task}");
    let own = json!({ "taskId": task["taskId"] });
    let listed = client.request("tasks/list", json!({})).result();
    assert_eq!(listed["tasks"][0]["taskId"], task["taskId"], "{listed}");
    let result = client.request("tasks/result", own.clone()).result();
    assert_eq!(result["content"][0]["text"], "done", "{result}");
    assert_eq!(client.request("tasks/get", own.clone()).result()["status"], "completed");
    let stranger = WebClient::new(&site.address, "/mcp").request("tasks/get", own).answer();
    assert_eq!(stranger["error"]["code"], -32602, "{stranger}");
}

#[test]
fn a_client_that_asks_for_no_task_gets_none() {
    let (mut client, _) = legacy();
    let handle = client.answer("execute_tool", json!({ "name": "shop.slow" }));
    assert_eq!(handle["state"], "running", "{handle}");
    // Older revisions have no tasks, so the capability is missing.
    let (setup, _) = shop(slow());
    let mut old = setup.start_silently();
    let answer = old.initialize("2025-06-18", json!({}));
    assert!(answer["result"]["capabilities"].get("tasks").is_none(), "{answer}");
    assert!(!old.line.contains(VERSION_KEY));
}

/// Servers of both eras whose calls are tasks.
fn servers_with_tasks() -> (Setup, PathBuf) {
    let required = json!({ "taskSupport": "required" });
    let tools = json!([
        { "name": "order", "execution": required, "on": { "task": 3, "text": "ordered" } },
        { "name": "break", "execution": required, "on": { "task": 1, "task_fails": true, "error": "broken" } },
        { "name": "forever", "execution": required, "on": { "task": 1_000_000, "text": "never" } },
    ]);
    let setup = Setup::new();
    let log = setup.path("calls");
    let script = |era: &str| json!({ "era": era, "tools": tools, "call_log": log });
    (setup.server("old", script("legacy")).server("new", script("modern")), log)
}

#[tokio::test]
async fn a_server_that_answers_with_a_task_is_followed() {
    let (setup, log) = servers_with_tasks();
    let inside = setup.open().await;
    for server in ["old", "new"] {
        let result = inside.execute(&format!("{server}.order"), json!({})).await;
        assert_eq!(text_of(&result), "ordered", "{server}: {result}");
        let failed = inside.execute(&format!("{server}.break"), json!({})).await;
        assert_eq!(failed["isError"], true, "{server}: {failed}");
    }
    let looks = logged(&log).iter().filter(|line| line["task"] == "get").count();
    assert!(looks >= 8, "{looks}");
}

#[test]
fn a_stateless_server_asks_first_and_then_answers_with_a_task() {
    let on = json!({ "elicit": form(), "task": 1 });
    let tools = json!([{ "name": "send", "execution": { "taskSupport": "required" }, "on": on }]);
    let mut client = Setup::new()
        .server("post", json!({ "era": "modern", "tools": tools }))
        .start_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "to": "Ada" } }));
    client.until_ready("post");
    let sent = client.execute("post.send", json!({}));
    assert_eq!(json_of(&sent)["content"]["to"], "Ada", "{sent}");
    assert_eq!(client.asked.len(), 1, "{:?}", client.asked);
}

#[tokio::test]
async fn a_servers_task_is_cancelled_with_its_call_and_at_its_limit() {
    let (setup, log) = servers_with_tasks();
    let inside = setup.open().await;
    let cancelled = || logged(&log).iter().filter(|line| line["task"] == "cancel").count();
    for (n, server) in ["old", "new"].into_iter().enumerate() {
        let call = json!({ "name": format!("{server}.forever"), "timeout_ms": 300 });
        let fault = inside.fault("execute_tool", call).await;
        assert_eq!(fault["code"], "timeout", "{server}: {fault}");
        assert_eq!(cancelled(), n + 1, "{server}");
    }
    let call = json!({ "name": "old.forever", "background": true });
    let handle = inside.answer("execute_tool", call).await;
    // Our task shows the status of the server's task.
    let status = json!({ "task_id": handle["task_id"] });
    let told = json_of(&inside.execute("gateway.background_run", status.clone()).await);
    assert!(told["progress"]["message"].as_str().is_some_and(|text| text.ends_with("looks left")), "{told}");
    let cancel = json!({ "task_id": handle["task_id"], "cancel": true });
    let told = json_of(&inside.execute("gateway.background_run", cancel).await);
    assert_eq!(told["state"], "cancelled", "{told}");
    assert_eq!(cancelled(), 3);
}
