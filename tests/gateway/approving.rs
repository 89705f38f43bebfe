//! `policy = "approve"`: no call runs without the user's approval.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, golden, json_of, logged},
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
async fn a_client_without_forms_asks_in_the_chat_and_calls_again() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let call = json!({ "name": "bank.pay", "params": { "sum": 5 } });
    let fault = inside.fault("execute_tool", call.clone()).await;
    insta::assert_json_snapshot!(golden(fault.clone()));
    assert_eq!(logged(&log), Vec::<Value>::new(), "the server has not seen the call");
    let mut answer = fault["next_step"]["arguments"].clone();
    answer["answer"] = json!("allow");
    let told = inside.answer("ask_user", answer).await;
    assert_eq!(told["status"], "approved", "{told}");
    assert_eq!(told["next_step"]["arguments"], call, "{told}");
    // Different params make a different call.
    let other = json!({ "name": "bank.pay", "params": { "sum": 5000 } });
    assert_eq!(inside.fault("execute_tool", other).await["code"], "needs_approval");
    // The call is allowed once, with its params in any order.
    assert_eq!(inside.answer("execute_tool", call.clone()).await, json!({ "sum": 5 }));
    assert_eq!(inside.fault("execute_tool", call).await["code"], "needs_approval");
    assert_eq!(logged(&log).len(), 1);
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
        let told = inside.answer("ask_user", json!({ "token": token, "answer": answer })).await;
        assert_eq!(told["status"], "approved", "{answer}: {told}");
        let next = told["next_step"]["arguments"].clone();
        assert_eq!(inside.answer("execute_tool", next).await, json!({ "sum": n }), "{answer}");
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
    let told = inside.answer("ask_user", json!({ "token": token, "answer": "Yes." })).await;
    assert_eq!(told["status"], "approved", "{told}");
    let fault = inside.fault("ask_user", json!({ "token": token, "answer": "Yes." })).await;
    assert_eq!(fault["code"], "not_found", "a token is good once: {fault}");
    assert_eq!(logged(&log), Vec::<Value>::new());
}

#[tokio::test]
async fn a_no_with_a_reason_keeps_the_reason() {
    let (setup, _) = bank();
    let inside = setup.open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "bank.pay" })).await;
    let token = &fault["next_step"]["arguments"]["token"];
    let told = inside.answer("ask_user", json!({ "token": token, "answer": "No, pay Bob instead" })).await;
    assert_eq!(told, json!({ "status": "denied", "user_feedback": "No, pay Bob instead" }));
}

#[tokio::test]
async fn an_always_in_the_chat_holds_for_the_session() {
    let (setup, _) = bank();
    let inside = setup.open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "bank.pay", "params": { "sum": 1 } })).await;
    let token = &fault["next_step"]["arguments"]["token"];
    inside.answer("ask_user", json!({ "token": token, "answer": "Yes, always" })).await;
    assert_eq!(json_of(&inside.execute("bank.pay", json!({ "sum": 2 })).await), json!({ "sum": 2 }));
}

#[tokio::test]
async fn another_client_can_neither_answer_nor_spend_a_token() {
    let (setup, _) = bank();
    let inside = setup.open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "bank.pay", "params": { "sum": 1 } })).await;
    let answer = json!({ "token": fault["next_step"]["arguments"]["token"], "answer": "yes" });
    let other = inside.gateway.caller(inside.gateway.open_session(None), "other");
    let told = json_of(&inside.call_as(&other, "ask_user", answer.clone()).await);
    assert_eq!(told["error"]["code"], "not_found", "{told}");
    assert_eq!(inside.answer("ask_user", answer).await["status"], "approved");
}

#[tokio::test]
async fn the_approved_call_is_the_same_with_its_params_in_another_order() {
    let (setup, log) = bank();
    let inside = setup.open().await;
    let pay = |params: &str| json!({ "name": "bank.pay", "params": serde_json::from_str::<Value>(params).expect("JSON") });
    let written = r#"{"to":{"name":"Ada","bank":"B"},"icons":[1,2],"sum":1}"#;
    let fault = inside.fault("execute_tool", pay(written)).await;
    let token = &fault["next_step"]["arguments"]["token"];
    inside.answer("ask_user", json!({ "token": token, "answer": "yes" })).await;
    // A list in another order, and another value at any place, make another call.
    for other in [
        r#"{"to":{"name":"Ada","bank":"B"},"icons":[2,1],"sum":1}"#,
        r#"{"to":{"name":"Ada","bank":"C"},"icons":[1,2],"sum":1}"#,
        r#"{"to":{"name":"Ada","bank":"B"},"sum":1}"#,
    ] {
        assert_eq!(inside.fault("execute_tool", pay(other)).await["code"], "needs_approval", "{other}");
    }
    inside.call("execute_tool", pay(r#"{"sum":1,"icons":[1,2],"to":{"bank":"B","name":"Ada"}}"#)).await;
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
    let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(report["results"][0]["error"]["code"], "needs_approval", "{report}");
    assert_eq!(report["results"][1]["success"], true, "{report}");
    assert!(logged(&log).iter().all(|call| call["params"]["name"] != "pay"), "{:?}", logged(&log));
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
