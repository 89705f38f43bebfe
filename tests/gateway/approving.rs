//! `policy = "approve"`: no call runs without the user's approval.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{
    client::Client,
    inside::Inside,
    setup::{Setup, golden, json_of, logged, notices_of, text_of},
};

fn bank() -> (Setup, PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "pay", "description": "Pays" }, { "name": "look" }]);
    let setup = setup.server("bank", json!({ "tools": tools, "call_log": log }));
    (setup.toml("[servers.bank.tools.pay]\npolicy = 'approve'"), log)
}

fn with_forms(action: &'static str, decision: &'static str) -> (Client, PathBuf) {
    let (setup, log) = bank();
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.answer_questions(move |_| json!({ "action": action, "content": { "decision": decision } }));
    client.until_ready("bank");
    (client, log)
}

#[test]
fn the_user_allows_a_call_in_the_form() {
    let (mut client, _) = with_forms("accept", "allow");
    assert_eq!(client.answer("bank__pay", json!({ "sum": 5 })), json!({ "sum": 5 }));
    let message = client.asked[0]["message"].as_str().expect("a message").to_string();
    assert!(
        message.contains("pay") && message.contains("bank") && message.contains("\"sum\": 5"),
        "{message}"
    );
    // Each call needs approval; tools without the policy do not.
    assert_eq!(client.answer("bank__pay", json!({ "sum": 5 })), json!({ "sum": 5 }));
    assert_eq!(client.asked.len(), 2);
    client.answer("bank__look", json!({}));
    assert_eq!(client.asked.len(), 2);
}

#[test]
fn a_short_deadline_leaves_time_for_the_form() {
    let setup = bank().0.gateway("soft_deadline = '3s'");
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow" } }));
    client.until_ready("bank");
    assert_eq!(client.answer("bank__pay", json!({ "sum": 5 })), json!({ "sum": 5 }));
}

#[test]
fn the_user_does_not_allow_a_call_in_the_form() {
    for (action, decision, code) in [
        ("accept", "deny", "forbidden"),
        ("decline", "", "forbidden"),
        ("cancel", "", "needs_approval"),
        ("", "", "needs_approval"),
    ] {
        let (mut client, log) = with_forms(action, decision);
        let fault = client.fault("bank.pay", json!({ "sum": 5 }));
        assert_eq!(fault["code"], code, "{action}: {fault}");
        assert_eq!(logged(&log), Vec::<Value>::new(), "the server has not seen the call");
    }
}

#[tokio::test]
async fn a_yes_in_the_chat_runs_the_call_that_waits() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let call = json!({ "name": "bank.pay", "params": { "sum": 5 } });
    let fault = inside.fault("execute_tool", call.clone()).await;
    insta::assert_json_snapshot!(golden(fault.clone()));
    assert_eq!(logged(&log), Vec::<Value>::new(), "the server has not seen the call");
    let mut answer = fault["next_step"]["arguments"].clone();
    answer["answer"] = json!("allow");
    let paid = inside.call("ask_user", answer.clone()).await;
    assert_eq!(
        paid,
        json!({ "content": [{ "type": "text", "text": "{\"sum\":5}" }] }),
        "as its server wrote it"
    );
    assert_eq!(logged(&log).len(), 1);
    // Once, and nothing else.
    assert_eq!(inside.fault("ask_user", answer).await["code"], "not_found");
    assert_eq!(inside.fault("execute_tool", call).await["code"], "needs_approval");
    let other = json!({ "name": "bank.pay", "params": { "sum": 5000 } });
    assert_eq!(inside.fault("execute_tool", other).await["code"], "needs_approval");
    assert_eq!(logged(&log).len(), 1);
}

#[tokio::test]
async fn large_params_under_approval_are_sent_once() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let text = "x".repeat(65_000);
    let call = json!({ "name": "bank.pay", "params": { "to": "Ada", "note": text }, "select": ".to" });
    let fault = inside.fault("execute_tool", call).await;
    let message = fault["message"].as_str().expect("a message");
    assert!(message.contains("(65000 bytes in all)") && message.contains("Ada"), "{message}");
    assert!(fault.to_string().len() < 2_000, "{} bytes", fault.to_string().len());
    let token = &fault["next_step"]["arguments"]["token"];
    // The question stays short when it is repeated.
    let again = inside.answer("ask_user", json!({ "token": token })).await;
    assert!(again.to_string().len() < 2_000, "{again}");
    let paid = inside.call("ask_user", json!({ "token": token, "answer": "yes" })).await;
    assert_eq!(text_of(&paid), "Ada", "its filter applies: {paid}");
    assert_eq!(logged(&log)[0]["params"]["arguments"]["note"], json!(text));
}

#[tokio::test]
async fn an_approved_background_call_and_app_run_as_they_were_asked_for() {
    let (setup, log) = bank();
    let inside = setup.toml("[apps.pay]\ntool = 'bank.pay'").open().await;
    for (tool, arguments, part) in [
        ("call_app", json!({ "app_id": "pay", "input": { "sum": 7 } }), "\"tool_calls\":1"),
        (
            "execute_tool",
            json!({ "name": "bank.pay", "params": { "sum": 8 }, "background": true }),
            "\"sum\":8",
        ),
    ] {
        let fault = inside.fault(tool, arguments).await;
        let token = &fault["next_step"]["arguments"]["token"];
        let done = inside.call("ask_user", json!({ "token": token, "answer": "yes" })).await;
        assert!(text_of(&done).contains(part), "{done}");
    }
    assert_eq!(logged(&log).len(), 2);
}

#[tokio::test]
async fn a_no_in_the_chat_is_a_no() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let call = json!({ "name": "bank.pay", "params": {} });
    let fault = inside.fault("execute_tool", call.clone()).await;
    for answer in ["deny", "rather not"] {
        let token =
            inside.fault("execute_tool", call.clone()).await["next_step"]["arguments"]["token"].clone();
        let told = inside.answer("ask_user", json!({ "token": token, "answer": answer })).await;
        assert_eq!(told["status"], "denied", "{told}");
    }
    assert_eq!(inside.fault("execute_tool", call).await["code"], "needs_approval");
    assert_eq!(fault["code"], "needs_approval");
    assert_eq!(logged(&log), Vec::<Value>::new());
}

#[tokio::test]
async fn a_yes_in_the_chat_is_read_as_people_write_it() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let answers = [
        json!("Yes, go ahead"),
        json!("sure"),
        json!("ok!"),
        json!("Allow."),
        json!("ja"),
        json!("allow once"),
        json!("oui, vas-y"),
        json!("да"),
        json!("好的"),
        json!("はい、お願いします"),
        json!("👍"),
        json!({ "decision": "allow" }),
        json!({ "answer": "yes" }),
        json!(true),
    ];
    for (n, answer) in answers.iter().enumerate() {
        let call = json!({ "name": "bank.pay", "params": { "sum": n } });
        let fault = inside.fault("execute_tool", call.clone()).await;
        let token = fault["next_step"]["arguments"]["token"].clone();
        let paid = inside.answer("ask_user", json!({ "token": token, "answer": answer })).await;
        assert_eq!(paid, json!({ "sum": n }), "{answer}");
    }
    assert_eq!(logged(&log).len(), answers.len());
}

#[tokio::test]
async fn what_is_neither_a_yes_nor_a_no_asks_again_with_the_same_token() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let call = json!({ "name": "bank.pay", "params": { "sum": 5 } });
    let token = inside.fault("execute_tool", call.clone()).await["next_step"]["arguments"]["token"].clone();
    for answer in [
        json!("yes, but only half of it"),
        json!("ja, aber nur die Hälfte"),
        json!("no problem"),
        json!("not sure"),
        json!("yes? no"),
        json!("ok cancel it"),
        json!("nobody"),
        json!("okra"),
        json!("2"),
        json!(""),
        json!({ "decision": "allow", "only": "half" }),
        json!("Yes, once the client has approved"),
        json!("No, that's not a problem"),
        json!({ "decision": "allow", "comment": "after 5pm" }),
        json!({ "decision": "allow", "content": "sum 2" }),
    ] {
        let told = inside.answer("ask_user", json!({ "token": token, "answer": answer })).await;
        assert_eq!((&told["status"], &told["token"]), (&json!("needs_user"), &token), "{answer}: {told}");
        let hint = told["hint"].as_str().unwrap_or_default();
        assert!(hint.contains("`allow`") && hint.contains("`deny`"), "{answer}: {told}");
        let message = told["message"].as_str().unwrap_or_default();
        assert!(message.contains("bank"), "the question is told again: {told}");
    }
    let edited = json!({ "token": token, "answer": "yes", "content": "{\"sum\": 2}" });
    let told = inside.answer("ask_user", edited).await;
    assert_eq!((&told["status"], &told["token"]), (&json!("needs_user"), &token), "{told}");
    assert!(told["hint"].as_str().is_some_and(|hint| hint.contains("cannot edit the params")), "{told}");
    assert_eq!(inside.fault("execute_tool", call.clone()).await["code"], "needs_approval");
    assert_eq!(logged(&log), Vec::<Value>::new());
    let paid = inside.answer("ask_user", json!({ "token": token, "answer": "Yes." })).await;
    assert_eq!(paid, json!({ "sum": 5 }));
    let fault = inside.fault("ask_user", json!({ "token": token, "answer": "Yes." })).await;
    assert_eq!(fault["code"], "not_found", "a token is good once: {fault}");
}

#[tokio::test]
async fn a_no_with_a_reason_keeps_the_reason_and_is_asked_again_without_keys() {
    let (setup, _) = bank();
    let inside = setup.open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "bank.pay" })).await;
    let token = &fault["next_step"]["arguments"]["token"];
    let told = inside.answer("ask_user", json!({ "token": token, "answer": "No, pay Bob instead" })).await;
    assert_eq!((&told["status"], &told["token"]), (&json!("needs_user"), token), "{told}");
    let no = json!({ "decision": "deny", "feedback": "pay Bob instead" });
    let told = inside.answer("ask_user", json!({ "token": token, "answer": no })).await;
    assert_eq!(told, json!({ "status": "denied", "user_feedback": "pay Bob instead" }));
}

#[tokio::test]
async fn an_always_in_the_chat_holds_for_the_session() {
    let (setup, _) = bank();
    let inside = setup.open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "bank.pay", "params": { "sum": 1 } })).await;
    let token = &fault["next_step"]["arguments"]["token"];
    let paid = inside.call("ask_user", json!({ "token": token, "answer": "Yes, always" })).await;
    assert_eq!(json_of(&paid), json!({ "sum": 1 }));
    let notices = notices_of(&paid);
    assert_eq!(notices[0]["holds_for"], "every call for the rest of this session", "{paid}");
    assert_eq!(json_of(&inside.execute("bank.pay", json!({ "sum": 2 })).await), json!({ "sum": 2 }));
}

#[tokio::test]
async fn another_client_can_neither_answer_nor_spend_a_token() {
    let (setup, _) = bank();
    let inside = setup.open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "bank.pay", "params": { "sum": 1 } })).await;
    let answer = json!({ "token": fault["next_step"]["arguments"]["token"], "answer": "yes" });
    let other = inside.gateway.sessions.caller(inside.gateway.sessions.open(None), "other");
    let told = json_of(&inside.call_as(&other, "ask_user", answer.clone()).await);
    assert_eq!(told["error"]["code"], "not_found", "{told}");
    assert_eq!(inside.answer("ask_user", answer).await, json!({ "sum": 1 }));
}

#[tokio::test]
async fn the_same_call_with_its_params_in_another_order_has_the_same_question() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let asked = async |params: &str| {
        let params: Value = serde_json::from_str(params).expect("JSON");
        let fault = inside.fault("execute_tool", json!({ "name": "bank.pay", "params": params })).await;
        fault["next_step"]["arguments"]["token"].clone()
    };
    let token = asked(r#"{"to":{"name":"Ada","bank":"B"},"icons":[1,2],"sum":1}"#).await;
    assert_eq!(asked(r#"{"sum":1,"icons":[1,2],"to":{"bank":"B","name":"Ada"}}"#).await, token);
    // A list in another order, and another value at any place, make another call.
    for other in [
        r#"{"to":{"name":"Ada","bank":"B"},"icons":[2,1],"sum":1}"#,
        r#"{"to":{"name":"Ada","bank":"C"},"icons":[1,2],"sum":1}"#,
        r#"{"to":{"name":"Ada","bank":"B"},"sum":1}"#,
    ] {
        assert_ne!(asked(other).await, token, "{other}");
    }
    inside.call("ask_user", json!({ "token": token, "answer": "yes" })).await;
    assert_eq!(logged(&log).len(), 1);
}

#[test]
fn an_approval_hides_nothing_of_the_params() {
    let (mut client, _) = with_forms("accept", "allow");
    client.answer("bank__pay", json!({ "to": "Ada\u{202e}adA", "for\u{200b}": "rent\u{e0041}" }));
    let message = client.asked[0]["message"].as_str().expect("a message").to_string();
    assert!(message.contains("Ada\\u{202e}adA") && message.contains("for\\u{200b}"), "{message}");
    assert!(message.contains("rent\\u{e0041}"), "{message}");
    let (setup, _) = bank();
    let mut client = setup.start();
    client.until_ready("bank");
    let fault = client.fault("bank.pay", json!({ "to": "Ada\u{202e}adA" }));
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("Ada\\u{202e}adA")), "{fault}");
}

#[test]
fn a_form_that_comes_back_empty_is_no_answer() {
    let (setup, log) = bank();
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": {} }));
    client.until_ready("bank");
    let fault = client.fault("bank.pay", json!({ "sum": 5 }));
    assert_eq!(fault["code"], "needs_approval", "{fault}");
    assert_eq!(fault["next_step"]["tool"], "execute_tool", "no token that a model could answer: {fault}");
    assert_eq!(logged(&log), Vec::<Value>::new());
}

#[test]
fn a_model_does_not_answer_for_a_background_call_where_the_client_has_forms() {
    for (decision, payments) in [("deny", 0), ("allow", 1)] {
        let (mut client, log) = with_forms("accept", decision);
        let fault = client.fault("gateway.background_run", json!({ "name": "bank.pay" }));
        let mut answer = fault["next_step"]["arguments"].clone();
        assert_eq!((&fault["code"], client.asked.len()), (&json!("needs_approval"), 0), "{fault}");
        answer["answer"] = json!("allow");
        let told = client.answer("ask_user", answer);
        assert_eq!((client.asked.len(), logged(&log).len()), (1, payments), "{decision}: {told}");
    }
    // A client that fails at the form is asked in the chat.
    let (setup, log) = bank();
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.until_ready("bank");
    let fault = client.fault("gateway.background_run", json!({ "name": "bank.pay" }));
    let answer = json!({ "token": fault["next_step"]["arguments"]["token"], "answer": "allow" });
    let again = client.answer("ask_user", answer);
    let token = &again["error"]["next_step"]["arguments"]["token"];
    assert_eq!((token.is_string(), logged(&log).len()), (true, 0), "{again}");
    client.answer("ask_user", json!({ "token": token, "answer": "allow" }));
    assert_eq!(logged(&log).len(), 1);
}

#[test]
fn a_no_ends_a_call_whose_form_was_closed() {
    let (mut client, log) = with_forms("cancel", "");
    let fault = client.fault("bank.pay", json!({ "note": "x".repeat(2_000) }));
    assert_eq!(fault["next_step"]["tool"], "ask_user", "{fault}");
    let mut answer = fault["next_step"]["arguments"].clone();
    answer["answer"] = json!("no");
    assert_eq!(client.answer("ask_user", answer.clone()), json!({ "status": "denied" }));
    assert_eq!(client.answer("ask_user", answer)["error"]["code"], "not_found");
    assert_eq!((client.asked.len(), logged(&log).len()), (1, 0));
}

#[tokio::test]
async fn no_other_door_leads_around_the_user() {
    let (setup, log) = bank();
    let inside = setup.toml("[apps.pay]\ntool = 'bank.pay'").open().await;
    for (tool, arguments) in [
        ("bank__pay", json!({ "sum": 5 })),
        ("gateway.background_run", json!({ "name": "bank.pay" })),
        ("execute_tool", json!({ "name": "bank.pay", "background": true })),
        ("call_app", json!({ "app_id": "pay", "input": {} })),
    ] {
        let fault = inside.fault(tool, arguments).await;
        assert_eq!(fault["code"], "needs_approval", "{tool}: {fault}");
    }
    let actions = json!([{ "name": "bank.pay" }, { "name": "bank.look" }]);
    let asked = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!((&asked["status"], &asked["step"]), (&json!("needs_user"), &json!("1")), "{asked}");
    assert!(logged(&log).iter().all(|call| call["params"]["name"] != "pay"), "{:?}", logged(&log));
}

/// Returns a graph of payments, and what the server has paid.
fn payments() -> (Setup, PathBuf, Value) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "pay" }, { "name": "note" }, { "name": "rows", "on": { "json_rows": 3 }, "annotations": { "readOnlyHint": true } }]);
    let setup = setup.server("bank", json!({ "tools": tools, "call_log": log }));
    let actions = json!([
        { "id": "rows", "name": "bank.rows" },
        { "id": "first", "name": "bank.note", "params": { "text": "begins" } },
        { "id": "all", "name": "bank.pay", "for_each": "{{rows}}", "params": { "to": "{{item.name}}" } },
        { "id": "last", "name": "bank.pay", "params": { "to": "{{first.text}}" }, "after": ["all"] },
    ]);
    (setup.toml("[servers.bank.tools.pay]\npolicy = 'approve'"), log, json!({ "actions": actions }))
}

fn called(log: &std::path::Path, tool: &str) -> usize {
    logged(log).iter().filter(|line| line["params"]["name"] == tool).count()
}

async fn answered(inside: &Inside, asked: &Value, answer: &str) -> Value {
    let mut arguments = asked["next_step"]["arguments"].clone();
    arguments["answer"] = json!(answer);
    inside.call("ask_user", arguments).await
}

#[tokio::test]
async fn one_question_covers_all_calls_of_a_tool_in_a_graph() {
    for answer in ["yes", "ja, alle", "yes to all"] {
        let (setup, log, graph) = payments();
        let inside = setup.open().await;
        let asked = inside.answer("run_parallel", graph).await;
        assert_eq!((&asked["status"], &asked["step"]), (&json!("needs_user"), &json!("all")), "{asked}");
        let message = asked["message"].as_str().expect("a message");
        let covers = "covers every call of `bank.pay` in this run: 4. The others:";
        assert!(message.contains(covers) && message.contains("row 2"), "{message}");
        assert_eq!(message.matches("row 0").count(), 1, "its params are there once: {message}");
        assert_eq!(
            asked.to_string().matches("Allow `pay`").count(),
            1,
            "the question is there once: {asked}"
        );
        assert_eq!((called(&log, "pay"), called(&log, "note")), (0, 1));
        let result = answered(&inside, &asked, answer).await;
        let report = json_of(&result);
        assert_eq!((&report["succeeded"], &report["failed"]), (&json!(4), &json!(0)), "{answer}: {report}");
        assert_eq!(notices_of(&result)[0]["holds_for"], "every call of this run", "{result}");
        assert_eq!(report["results"][3]["result"], json!({ "to": "begins" }), "{report}");
        assert_eq!(
            (called(&log, "pay"), called(&log, "note"), called(&log, "rows")),
            (4, 1, 1),
            "nothing twice"
        );
        // The next run asks again.
        let (_, _, graph) = payments();
        let again = inside.answer("run_parallel", graph).await;
        assert_eq!(again["status"], "needs_user", "{again}");
    }
}

#[tokio::test]
async fn a_question_says_that_a_yes_may_cover_more_calls_than_are_known() {
    let (setup, _) = sends();
    let inside = setup.toml("[apps.pay]\ntool = 'bank.pay'").open().await;
    let pay = json!({ "id": "a", "name": "bank.pay" });
    for (actions, calls) in [
        (
            json!([pay, { "name": "bank.pay", "for_each": "{{a}}", "params": { "to": "{{item}}" } }]),
            "at least 2",
        ),
        (json!([pay, { "name": "apps.outer", "after": ["a"] }]), "at least 1"),
        (json!([pay, { "name": "bank.pay", "for_each": [1, 2] }]), "3"),
        (json!([{ "name": "apps.outer" }]), "at least 1"),
        (json!([{ "name": "apps.pay" }]), "at least 1"),
    ] {
        let asked = inside.answer("run_parallel", json!({ "actions": actions })).await;
        let message = asked["message"].as_str().expect("a message");
        let covers = format!("The answer covers every call of `bank.pay` in this run: {calls}.");
        assert!(message.contains(&covers), "{actions}: {message}");
    }
    let asked = inside.answer("call_app", json!({ "app_id": "outer" })).await;
    assert!(
        asked["message"].as_str().is_some_and(|text| text.contains("in this run: at least 1.")),
        "{asked}"
    );
    // Nothing is said where the question itself says everything.
    let asked = inside.answer("run_parallel", json!({ "actions": [pay] })).await;
    assert!(asked["message"].as_str().is_some_and(|text| !text.contains("in this run")), "{asked}");
}

#[tokio::test]
async fn a_filter_leaves_the_question_of_a_run_as_it_is() {
    let (setup, _) = sends();
    let inside = setup.open().await;
    let graph = json!({ "actions": [{ "name": "bank.pay", "params": { "to": "Ada" } }] });
    for call in [
        json!({ "name": "apps.send", "params": { "text": "hi" }, "select": ".output" }),
        json!({ "name": "gateway.run_graph", "params": graph, "select": ".succeeded" }),
    ] {
        let asked = inside.answer("execute_tool", call).await;
        assert_eq!(asked["status"], "needs_user", "{asked}");
        let told = json_of(&answered(&inside, &asked, "yes").await);
        assert!(told["output"] == "hi after hi" || told["succeeded"] == 1, "{told}");
    }
}

#[tokio::test]
async fn a_no_in_a_graph_costs_the_calls_of_the_tool_only() {
    let (setup, log, graph) = payments();
    let inside = setup.open().await;
    let asked = inside.answer("run_parallel", graph).await;
    let no = json!({ "decision": "deny", "feedback": "pay Bob instead" });
    let report = inside.answer("ask_user", json!({ "token": asked["token"], "answer": no })).await;
    assert_eq!((&report["succeeded"], &report["failed"]), (&json!(2), &json!(2)), "{report}");
    let error = &report["results"][2]["error"];
    assert_eq!(error["code"], "forbidden", "{report}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("pay Bob instead")), "{error}");
    assert_eq!((called(&log, "pay"), called(&log, "note")), (0, 1));
}

#[test]
fn a_graph_asks_once_by_a_form() {
    let (setup, log, graph) = payments();
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow" } }));
    client.until_ready("bank");
    let report = client.answer("run_parallel", graph);
    assert_eq!((&report["succeeded"], &report["failed"]), (&json!(4), &json!(0)), "{report}");
    assert_eq!((client.asked.len(), called(&log, "pay")), (1, 4), "{:?}", client.asked);
}

/// An app whose second step needs approval, directly or in an inner app.
const SENDS: &str = r#"
[servers.bank.tools.pay]
policy = 'approve'
[apps.send]
output = "{{paid.to}} after {{noted.text}}"
steps = [
    { id = "noted", tool = "bank.note", params = { text = "{{input.text}}" } },
    { id = "paid", tool = "bank.pay", params = { to = "{{noted.text}}" } },
]
[apps.outer]
output = "{{all}}"
steps = [
    { id = "before", tool = "bank.note", params = { text = "x" } },
    { id = "all", app = "send", for_each = ["a", "b"], max_concurrency = 1, after = ["before"], input = { text = "{{item}}" } },
]
"#;

fn sends() -> (Setup, PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "pay" }, { "name": "note" }]);
    (setup.server("bank", json!({ "tools": tools, "call_log": log })).toml(SENDS), log)
}

#[tokio::test]
async fn an_approval_inside_of_a_workflow_runs_nothing_twice() {
    for (app, input, output, notes, paid) in [
        ("send", json!({ "text": "hi" }), json!("hi after hi"), 1, 1),
        ("outer", Value::Null, json!(["a after a", "b after b"]), 3, 2),
    ] {
        let (setup, log) = sends();
        let inside = setup.open().await;
        let asked = inside.answer("call_app", json!({ "app_id": app, "input": input })).await;
        assert_eq!((&asked["status"], &asked["app_id"]), (&json!("needs_user"), &json!(app)), "{asked}");
        assert_eq!(
            (called(&log, "pay"), asked["next_step"]["tool"].clone()),
            (0, json!("ask_user")),
            "{asked}"
        );
        let unclear = json_of(&answered(&inside, &asked, "hmm").await);
        assert_eq!(unclear["token"], asked["token"], "{unclear}");
        let told = json_of(&answered(&inside, &asked, "yes").await);
        assert_eq!(told["output"], output, "{told}");
        assert_eq!((called(&log, "note"), called(&log, "pay")), (notes, paid), "nothing twice");
    }
}

#[tokio::test]
async fn a_no_inside_of_a_workflow_stops_it() {
    let (setup, log) = sends();
    let inside = setup.open().await;
    let asked = inside.answer("call_app", json!({ "app_id": "send", "input": { "text": "hi" } })).await;
    let told = json_of(&answered(&inside, &asked, "no").await);
    let message = told["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("step `paid`") && message.contains("did not allow"), "{told}");
    assert_eq!((called(&log, "note"), called(&log, "pay")), (1, 0));
}

#[test]
fn an_approval_inside_of_a_workflow_is_a_form_where_the_client_has_them() {
    let (setup, log) = sends();
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    let mut forms = 0;
    // The user closes the first form.
    client.answer_questions(move |_| {
        forms += 1;
        match forms {
            1 => json!({ "action": "cancel" }),
            _ => json!({ "action": "accept", "content": { "decision": "allow" } }),
        }
    });
    client.until_ready("bank");
    let asked = client.answer("call_app", json!({ "app_id": "send", "input": { "text": "hi" } }));
    assert_eq!(asked["status"], "needs_user", "{asked}");
    assert_eq!((called(&log, "note"), called(&log, "pay")), (1, 0));
    // A model does not answer for a user who has forms: whatever it says, the form is shown again.
    let told = client.answer("ask_user", json!({ "token": asked["token"], "answer": "deny" }));
    assert_eq!(told["output"], "hi after hi", "{told}");
    assert_eq!((called(&log, "note"), called(&log, "pay"), client.asked.len()), (1, 1, 2));
    let told = client.answer("call_app", json!({ "app_id": "outer" }));
    assert_eq!(told["output"], json!(["a after a", "b after b"]), "{told}");
    assert_eq!(client.asked.len(), 3, "one form for both items");
}

#[test]
fn a_stateless_client_is_asked_before_the_call_runs() {
    let (setup, log) = bank();
    let mut client = setup.start_silently();
    let forms = json!({ "elicitation": {} });
    let call = json!({ "name": "bank__pay", "arguments": { "sum": 5 } });
    let asked = crate::setup::eventually("the server is ready", || {
        let answer = client.modern("tools/call", call.clone(), forms.clone());
        Some(answer["result"].clone()).filter(|result| result["resultType"] == "input_required")
    });
    assert_eq!(logged(&log), Vec::<Value>::new());
    let key =
        asked["inputRequests"].as_object().and_then(|all| all.keys().next()).expect("one request").clone();
    let mut again = call.clone();
    again["requestState"] = asked["requestState"].clone();
    again["inputResponses"] =
        json!({ key.as_str(): { "action": "accept", "content": { "decision": "allow" } } });
    // An answer applies to one call only.
    let mut other = again.clone();
    other["arguments"] = json!({ "sum": 5000 });
    let told = client.modern("tools/call", other, forms.clone());
    assert_eq!(told["error"]["code"], -32602, "{told}");
    assert_eq!(logged(&log), Vec::<Value>::new());

    let told = client.modern("tools/call", again.clone(), forms.clone());
    assert_eq!(json_of(&told["result"]), json!({ "sum": 5 }), "{told}");
    // One answer allows one call.
    let told = client.modern("tools/call", again, forms);
    assert_eq!(told["error"]["code"], -32602, "{told}");
    assert_eq!(logged(&log).len(), 1);
}
