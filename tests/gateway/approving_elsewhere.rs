//! `approve_by = "user"`: a model's answer never approves anything.

use std::{
    path::{Path, PathBuf},
    process::Output,
    sync::{Arc, Mutex},
    thread,
};

use axum::{Router, body::Bytes, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    client::{Client, command},
    setup::{Setup, fake_server, json_of, logged},
    web::{WebClient, http},
};

/// Returns a bank that pays only with the user's approval, and the log of its calls.
fn bank(gateway: &str) -> (Setup, PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let setup = setup
        .gateway(&format!("approve_by = 'user'\n{gateway}"))
        .server("bank", json!({ "tools": [{ "name": "pay", "description": "Pays" }], "call_log": log }))
        .toml("[servers.bank.tools.pay]\npolicy = 'approve'");
    (setup, log)
}

/// Returns a client that soon learns that a call still waits.
fn client(setup: Setup) -> Client {
    let mut client = setup.gateway("soft_deadline = '4s'").start_program();
    client.until_ready("bank");
    client
}

fn nonet(folder: &Path, arguments: &[&str]) -> Output {
    command(folder).args(arguments).output().expect("nonet runs")
}

fn waiting(folder: &Path) -> Vec<Value> {
    let output = nonet(folder, &["approve", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    told["waiting"].as_array().expect("a list").clone()
}

fn id(fault: &Value) -> String {
    fault["details"]["approval"].as_str().unwrap_or_else(|| panic!("no approval: {fault}")).into()
}

#[test]
fn the_user_approves_one_call_with_a_command() {
    let (setup, log) = bank("");
    let mut client = client(setup);
    let folder = client.folder.clone();
    let fault = client.fault("bank.pay", json!({ "sum": 5 }));
    assert_eq!(
        (&fault["code"], &fault["next_step"]["tool"]),
        (&json!("needs_approval"), &json!("execute_tool"))
    );
    let id = id(&fault);
    let message = fault["message"].as_str().expect("a message");
    assert!(message.contains(&format!("approve {id}")) && !message.contains("token"), "{message}");
    // The answer contains no token that a model could use.
    let answered = client.call("ask_user", json!({ "token": id, "answer": "allow" }));
    assert_eq!(json_of(&answered)["error"]["code"], "not_found", "{answered}");
    // The same call still waits, and is not duplicated.
    assert_eq!(self::id(&client.fault("bank.pay", json!({ "sum": 5 }))), id);
    let shown = waiting(folder.path());
    assert_eq!((shown.len(), &shown[0]["id"]), (1, &json!(id)), "{shown:?}");
    assert!(shown[0]["question"].as_str().is_some_and(|text| text.contains("\"sum\": 5")), "{shown:?}");
    let people = nonet(folder.path(), &["approve"]);
    assert!(String::from_utf8_lossy(&people.stdout).contains("\"sum\": 5"), "{people:?}");

    let call = client.begin_call("execute_tool", json!({ "name": "bank.pay", "params": { "sum": 5 } }));
    let approved = nonet(folder.path(), &["approve", &id]);
    assert_eq!(approved.status.code(), Some(0), "{approved:?}");
    assert_eq!(json_of(&client.finish(call)["result"]), json!({ "sum": 5 }), "the call that waited goes on");
    assert_eq!(nonet(folder.path(), &["approve", &id]).status.code(), Some(1), "it is good once");
    let next = self::id(&client.fault("bank.pay", json!({ "sum": 5 })));
    assert_ne!(next, id);
    // Different params need their own approval; a no is final.
    let other = self::id(&client.fault("bank.pay", json!({ "sum": 5_000 })));
    assert!(other != next && waiting(folder.path()).len() == 2);
    assert_eq!(nonet(folder.path(), &["approve", &other, "--deny"]).status.code(), Some(0));
    assert_eq!(client.fault("bank.pay", json!({ "sum": 5_000 }))["code"], "forbidden");
    assert_eq!(logged(&log).len(), 1);
    // Approves for the rest of the session.
    assert_eq!(nonet(folder.path(), &["approve", &next, "--session"]).status.code(), Some(0));
    for sum in [5, 6] {
        assert_eq!(client.answer("bank__pay", json!({ "sum": sum })), json!({ "sum": sum }));
    }
}

#[test]
fn what_is_hidden_in_the_params_is_seen_outside_of_the_chat() {
    let (setup, _) = bank("");
    let mut client = client(setup);
    client.fault("bank.pay", json!({ "to": "Ada\u{202e}adA" }));
    let shown = waiting(client.folder.path());
    assert!(shown[0]["question"].as_str().is_some_and(|text| text.contains("Ada\\u{202e}adA")), "{shown:?}");
    let people = nonet(client.folder.path(), &["approve"]);
    let people = String::from_utf8_lossy(&people.stdout).into_owned();
    assert!(people.contains("Ada\\u{202e}adA") && !people.contains('\u{202e}'), "{people}");
}

#[test]
fn an_approval_is_of_one_session() {
    let (setup, log) = bank("");
    let mut one = client(setup);
    let mut other = one.beside(&[]);
    other.initialize("2025-06-18", json!({}));
    other.until_ready("bank");
    let id = id(&one.fault("bank.pay", json!({ "sum": 5 })));
    assert_eq!(nonet(one.folder.path(), &["approve", &id]).status.code(), Some(0));
    assert_eq!(other.fault("bank.pay", json!({ "sum": 5 }))["code"], "needs_approval");
    assert_eq!(one.answer("bank__pay", json!({ "sum": 5 })), json!({ "sum": 5 }));
    assert_eq!(logged(&log).len(), 1);
}

#[test]
fn a_form_of_the_client_counts() {
    let (setup, _) = bank("");
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow" } }));
    client.until_ready("bank");
    assert_eq!(client.answer("bank__pay", json!({ "sum": 5 })), json!({ "sum": 5 }));
}

#[test]
fn the_user_answers_the_step_of_a_workflow_and_adds_a_server() {
    let (setup, log) = bank("allow_runtime_servers = true");
    let app = "[apps.pays]\nsteps = [{ id = 'sum', ask = { question = 'Which sum?', choices = ['5', '500'] } }, \
               { id = 'ok', after = ['sum'], ask = { question = 'Go on?', content = 'All of it' } }]\n\
               output = { sum = '{{sum.answer}}', ok = '{{ok.status}}' }";
    let mut client = client(setup.toml(app));
    let folder = client.folder.clone();
    let asked = client.answer("call_app", json!({ "app_id": "pays" }));
    assert_eq!(asked["status"], "needs_user", "{asked}");
    assert!(asked["hint"].as_str().is_some_and(|hint| hint.contains("does not count")), "{asked}");
    let said = client.call("ask_user", json!({ "token": asked["token"], "answer": "500" }));
    assert_eq!(json_of(&said)["error"]["code"], "needs_approval", "{said}");
    let shown = waiting(folder.path());
    assert_eq!((shown.len(), &shown[0]["takes_answer"]), (1, &json!(true)), "{shown:?}");
    let decide = |arguments: &[&str]| {
        let id = waiting(folder.path())[0]["id"].as_str().expect("an id").to_string();
        let output = nonet(folder.path(), &[&["approve", &id], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    decide(&["--answer", "5"]);
    let asked = client.answer("ask_user", json!({ "token": asked["token"], "answer": "500" }));
    assert_eq!(asked["status"], "needs_user", "the next step asks: {asked}");
    decide(&[]);
    let told = client.answer("ask_user", json!({ "token": asked["token"] }));
    assert_eq!(told["output"], json!({ "sum": "5", "ok": "approved" }), "{told}");

    let server = json!({ "name": "more", "command": "true" });
    let fault = client.fault("gateway.add_server", server);
    assert_eq!(fault["code"], "needs_approval", "{fault}");
    let shown = waiting(folder.path());
    assert!(shown[0]["question"].as_str().is_some_and(|text| text.contains("more")), "{shown:?}");
    assert_eq!((&shown[0]["id"], &shown[0]["for_session"]), (&json!(id(&fault)), &json!(false)));
    assert_eq!(logged(&log), Vec::<Value>::new());
    // Questions other than approvals are still answered in the chat.
    let asked = client.answer("ask_user", json!({ "question": "Which city?" }));
    let told = client.answer("ask_user", json!({ "token": asked["token"], "answer": "Bonn" }));
    assert_eq!(told, json!({ "status": "answered", "answer": "Bonn" }));
}

#[test]
fn a_run_that_waits_for_the_chat_waits_for_the_user_once_only_the_user_counts() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let script = json!({ "tools": [{ "name": "pay" }], "call_log": log });
    let setup = setup.gateway("approve_by = 'chat'").server("bank", script);
    let mut client = client(setup.toml("[servers.bank.tools.pay]\npolicy = 'approve'"));
    let asked = client.answer("run_parallel", json!({ "actions": [{ "name": "bank.pay" }] }));
    assert_eq!(asked["status"], "needs_user", "{asked}");
    let file = client.folder.path().join("servers.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    std::fs::write(&file, text.replace("'chat'", "'user'")).expect("it can be written");
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    client.until_ready("bank");
    let asked = client.answer("ask_user", json!({ "token": asked["token"], "answer": "allow" }));
    assert!(asked["hint"].as_str().is_some_and(|hint| hint.contains("does not count")), "{asked}");
    assert_eq!(logged(&log), Vec::<Value>::new());
    let id = waiting(client.folder.path())[0]["id"].as_str().expect("an id").to_string();
    assert_eq!(nonet(client.folder.path(), &["approve", &id]).status.code(), Some(0));
    let report = client.answer("ask_user", json!({ "token": asked["token"] }));
    assert_eq!((&report["succeeded"], logged(&log).len()), (&json!(1), 1), "{report}");
}

#[test]
fn an_item_that_ended_before_the_question_of_a_later_one_is_not_done_again() {
    let (setup, _) = bank("allow_runtime_servers = true");
    let script = setup.path("more.script.json");
    let mut client = setup.gateway("soft_deadline = '4s'").start_program_with(json!({ "elicitation": {} }));
    std::fs::write(&script, json!({ "tools": [{ "name": "say" }] }).to_string()).expect("it can be written");
    client.answer_questions(|params| match params["message"].as_str() {
        Some(text) if text.contains("second") => json!({ "action": "cancel" }),
        _ => json!({ "action": "accept", "content": { "decision": "allow" } }),
    });
    let params = json!({ "name": "{{item}}", "command": fake_server(), "args": ["--script-file", script] });
    let actions = json!([{ "id": "all", "name": "gateway.add_server", "for_each": ["first", "second"], "max_concurrency": 1, "params": params }]);
    let asked = client.answer("run_parallel", json!({ "actions": actions }));
    assert_eq!((&asked["status"], client.asked.len()), (&json!("needs_user"), 2), "{asked}");
    let id = waiting(client.folder.path())[0]["id"].as_str().expect("an id").to_string();
    assert_eq!(nonet(client.folder.path(), &["approve", &id]).status.code(), Some(0));
    let report = client.answer("ask_user", json!({ "token": asked["token"] }));
    assert_eq!((&report["succeeded"], client.asked.len()), (&json!(1), 2), "{report}");
    let added: Vec<&Value> =
        report["results"][0]["result"].as_array().into_iter().flatten().map(|one| &one["name"]).collect();
    assert_eq!(added, ["first", "second"], "{report}");
}

#[test]
fn the_user_approves_on_the_page() {
    let (setup, _) = bank("");
    let site = setup.serve();
    let token = site.page_token();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("bank");
    let call = json!({ "name": "bank.pay", "params": { "sum": 5 } });
    let told = client.answer("execute_tool", call.clone());
    let message = told["error"]["message"].as_str().expect("a fault");
    assert!(message.contains("/ui)") && !message.contains(&token), "no model gets the token: {message}");
    let header = [("X-Nonet-Token", token.as_str())];
    let shown = http(&site.address, "GET", "/ui/api/waiting", &header, "");
    let shown: Value = serde_json::from_str(&shown.body).expect("JSON");
    let path = format!("/ui/api/approvals/{}", id(&told["error"]));
    assert_eq!(shown["approvals"][0]["id"], id(&told["error"]), "{shown}");
    let decide = |body: &str| http(&site.address, "POST", &path, &header, body).status;
    assert_eq!(decide("{\"decision\": \"perhaps\"}"), 400);
    assert_eq!(decide("{\"decision\": \"allow\"}"), 204);
    assert_eq!(decide("{\"decision\": \"deny\"}"), 404, "the first counts");
    assert_eq!(client.answer("execute_tool", call), json!({ "sum": 5 }));
}

/// Starts a webhook that gives this answer to each question.
fn webhook(answer: &'static str) -> (String, Arc<Mutex<Vec<Value>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (sender, started) = std::sync::mpsc::channel();
    let asked = seen.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            sender.send(listener.local_addr().expect("it is bound")).expect("somebody waits");
            let take = async move |body: Bytes| {
                let question = serde_json::from_slice(&body).expect("JSON");
                asked.lock().expect("no test panics with it").push(question);
                answer
            };
            axum::serve(listener, Router::new().route("/ask", post(take))).await.expect("it serves");
        });
    });
    (format!("http://{}/ask", started.recv().expect("it starts")), seen)
}

#[test]
fn a_webhook_decides_at_once_or_later() {
    for (answer, expected) in
        [("{\"decision\": \"allow\"}", None), ("{\"decision\": \"deny\"}", Some("forbidden"))]
    {
        let (url, seen) = webhook(answer);
        let (setup, _) = bank(&format!("approve_webhook = {{ url = '{url}' }}"));
        let mut client = client(setup);
        let told = client.execute("bank.pay", json!({ "sum": 5 }));
        match expected {
            None => assert_eq!(json_of(&told), json!({ "sum": 5 })),
            Some(code) => assert_eq!(json_of(&told)["error"]["code"], code, "{told}"),
        }
        let seen = seen.lock().expect("no test panics with it");
        assert_eq!((seen.len(), &seen[0]["for"]), (1, &json!("bank.pay")), "{seen:?}");
        assert!(seen[0].get("answer_url").is_none(), "nothing serves HTTP: {seen:?}");
    }
    let (url, seen) = webhook("");
    let (setup, _) = bank(&format!("approve_webhook = {{ url = '{url}' }}"));
    let site = setup.serve();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("bank");
    let call = json!({ "name": "bank.pay", "params": { "sum": 5 } });
    let told = client.answer("execute_tool", call.clone());
    assert_eq!(told["error"]["code"], "needs_approval", "{told}");
    let question = seen.lock().expect("no test panics with it")[0].clone();
    let address = question["answer_url"].as_str().expect("an address").to_string();
    assert!(!told.to_string().contains(&address), "{told}");
    let path = address.split_once(&site.address).expect("of this gateway").1.to_string();
    let answer = |path: &str, body: &str| http(&site.address, "POST", path, &[], body).status;
    assert_eq!(answer("/approve/guess", "{\"decision\": \"allow\"}"), 404);
    assert_eq!(answer(&path, "yes"), 400);
    assert_eq!(answer(&path, "{\"decision\": \"allow\"}"), 204);
    assert_eq!(answer(&path, "{\"decision\": \"allow\"}"), 404, "it is good once");
    assert_eq!(client.answer("execute_tool", call), json!({ "sum": 5 }));
}
