//! A server's requests during a call reach only the client of that call, between all pairs of eras.

use serde_json::{Value, json};

use crate::{
    client::Client,
    fake,
    setup::{Setup, eventually, json_of, logged, notices_of},
};

fn form() -> Value {
    json!({ "message": "Which colour?", "requestedSchema": {
        "type": "object", "properties": { "colour": { "type": "string" } }, "required": ["colour"],
    } })
}

fn tools() -> Value {
    json!([
        { "name": "form", "on": { "elicit": form() } },
        { "name": "page", "on": { "elicit": { "mode": "url", "message": "Sign in", "url": "https://example.org/", "elicitationId": "e1" } } },
        { "name": "model", "on": { "sampling": true } },
        { "name": "roots", "on": { "roots": true } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "loud", "on": { "log": "what I do", "text": "done" } },
    ])
}

fn shop(era: &str) -> Setup {
    let setup = Setup::new();
    let log = setup.path("messages");
    setup.server("shop", json!({ "tools": tools(), "era": era, "message_log": log }))
}

fn everything() -> Value {
    json!({ "elicitation": { "form": {}, "url": {} }, "sampling": { "tools": {} }, "roots": {} })
}

/// Returns the answer of these tests' clients.
fn reply(params: &Value) -> Value {
    if params.get("messages").is_some() {
        return json!({ "role": "assistant", "content": { "type": "text", "text": "Hello." }, "model": "m1", "stopReason": "endTurn" });
    }
    match params.get("mode").and_then(Value::as_str) {
        Some("url") => json!({ "action": "accept" }),
        _ if params.get("message").is_some() => json!({ "action": "accept", "content": { "colour": "red" } }),
        _ => json!({ "roots": [{ "uri": "file:///work", "name": "work" }] }),
    }
}

fn check_answers(answers: impl Fn(&str) -> Value) {
    assert_eq!(answers("form"), json!({ "action": "accept", "content": { "colour": "red" } }));
    assert_eq!(answers("page")["action"], "accept");
    let model = answers("model");
    assert_eq!((&model["model"], &model["content"]["text"]), (&json!("m1"), &json!("Hello.")), "{model}");
    assert_eq!(answers("roots")["roots"][0]["uri"], "file:///work");
}

/// Tests a client of the session era, which is asked while its request is open.
fn asks_live(era: &str) {
    let mut client = shop(era).start_with(everything());
    client.answer_questions(reply);
    client.until_ready("shop");
    let client = std::cell::RefCell::new(client);
    check_answers(|tool| json_of(&client.borrow_mut().execute(&format!("shop.{tool}"), json!({}))));
    let asked = client.borrow().asked.clone();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert_eq!(asked[0]["requestedSchema"], form()["requestedSchema"]);
}

#[test]
fn a_server_of_the_session_era_asks_a_client_of_the_session_era() {
    asks_live("legacy");
}

#[test]
fn a_stateless_server_asks_a_client_of_the_session_era() {
    asks_live("modern");
}

fn until_ready(client: &mut Client) {
    eventually("`shop` is ready", || {
        let params = json!({ "name": "execute_tool", "arguments": { "name": "gateway.status" } });
        let answer = client.modern("tools/call", params, json!({}));
        let status = json_of(&answer["result"]);
        (status["servers"][0]["state"] == "ready" && status["servers"][0]["tools"] != 0).then_some(())
    });
}

/// Tests a stateless client, which gets an unfinished result and repeats the call with the answers.
fn asks_by_rounds(era: &str) {
    let mut client = shop(era).start_silently();
    until_ready(&mut client);
    let client = std::cell::RefCell::new(client);
    check_answers(|tool| {
        let client = &mut *client.borrow_mut();
        let mut params = json!({ "name": "execute_tool", "arguments": { "name": format!("shop.{tool}") } });
        let asked = client.modern("tools/call", params.clone(), everything())["result"].take();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let requests = asked["inputRequests"].as_object().expect("requests");
        let answers: serde_json::Map<String, Value> =
            requests.iter().map(|(key, request)| (key.clone(), reply(&request["params"]))).collect();
        params["inputResponses"] = Value::Object(answers);
        params["requestState"] = asked["requestState"].clone();
        let done = client.modern("tools/call", params.clone(), everything())["result"].take();
        assert_eq!(done["resultType"], "complete", "{done}");
        // Each answer works only once.
        let again = client.modern("tools/call", params, everything());
        assert_eq!(again["error"]["code"], -32602, "{again}");
        json_of(&done)
    });
}

#[test]
fn a_server_of_the_session_era_asks_a_stateless_client() {
    asks_by_rounds("legacy");
}

#[test]
fn a_stateless_server_asks_a_stateless_client() {
    asks_by_rounds("modern");
}

#[test]
fn what_a_client_cannot_answer_is_declined() {
    let mut client = shop("legacy").start();
    client.until_ready("shop");
    // Missing roots are only logged.
    let roots = client.execute("shop.roots", json!({}));
    assert!(notices_of(&roots).iter().all(|notice| notice["kind"] != "request_declined"), "{roots}");
    let form = client.execute("shop.form", json!({}));
    assert_eq!(json_of(&form)["action"], "cancel", "no user has declined: {form}");
    assert!(form.to_string().contains("nobody could be asked"), "{form}");
    let notes = notices_of(&form);
    assert_eq!(
        (&notes[0]["kind"], &notes[0]["methods"]),
        (&json!("request_declined"), &json!(["elicitation/create"]))
    );
    let model = client.execute("shop.model", json!({})).to_string();
    assert!(model.contains("declined"), "{model}");
    assert!(client.asked.is_empty());
    // A client that supports only forms is not sent to a page.
    let mut client = shop("legacy").start_with(json!({ "elicitation": {} }));
    client.answer_questions(reply);
    client.until_ready("shop");
    assert_eq!(json_of(&client.execute("shop.page", json!({})))["action"], "cancel");
    assert_eq!(json_of(&client.execute("shop.form", json!({})))["action"], "accept");
    // A stateless server knows the client's capabilities in advance, and refuses by itself.
    let mut client = shop("modern").start();
    client.until_ready("shop");
    let lacks = client.execute("shop.form", json!({})).to_string();
    assert!(lacks.contains("lacks the capability"), "{lacks}");
}

#[test]
fn no_client_is_asked_on_behalf_of_another() {
    let site = shop("legacy").serve();
    let url = format!("http://{}", site.address);
    let connected = || {
        let mut client = Client::over(site.folder.clone(), &["connect", &url], &[]);
        client.initialize("2025-11-25", everything());
        client.answer_questions(reply);
        client.until_ready("shop");
        client
    };
    let (mut first, mut second) = (connected(), connected());
    assert_eq!(json_of(&first.execute("shop.form", json!({})))["action"], "accept");
    // While the second client has a call in flight, the question could belong to either.
    let hanging = second.begin_call("shop__hang", json!({}));
    let messages = site.folder.path().join("messages");
    eventually("the call has arrived", || {
        logged(&messages).iter().any(|line| line["params"]["name"] == "hang").then_some(())
    });
    let nobody = first.execute("shop.form", json!({}));
    assert_eq!(json_of(&nobody)["action"], "cancel", "no user has declined: {nobody}");
    assert!(nobody.to_string().contains("nobody could be asked"), "{nobody}");
    second.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": hanging } }),
    );
    eventually("the first is asked again", || {
        (json_of(&first.execute("shop.form", json!({})))["action"] == "accept").then_some(())
    });
    assert!(second.asked.is_empty(), "{:?}", second.asked);
    assert!(first.asked.len() >= 2);
}

/// A server that asks after the soft deadline.
fn late(era: &str) -> Setup {
    let tools = json!([
        { "name": "form", "on": { "delay_ms": 1_500, "elicit": form() } },
        { "name": "model", "on": { "sampling": true } },
    ]);
    Setup::new().server("shop", json!({ "tools": tools, "era": era })).gateway("soft_deadline = '500ms'")
}

/// Makes a call that goes on as a task. Returns its result.
fn by_task(client: &mut Client, tool: &str) -> Value {
    let handle = client.answer("execute_tool", json!({ "name": tool }));
    assert_eq!(handle["state"], "running", "{handle}");
    client.answer_the_rest(reply(&json!({ "messages": [] })));
    let wait = handle["next_step"]["arguments"].clone();
    eventually("the task ends", || {
        Some(client.answer("execute_tool", wait.clone())).filter(|told| told["state"] != "running")
    })
}

#[test]
fn a_question_after_the_soft_deadline_reaches_the_client_of_the_task() {
    for era in ["legacy", "modern"] {
        let mut client = late(era).start_with(everything());
        client.answer_questions(reply);
        client.until_ready("shop");
        let told = by_task(&mut client, "shop.form");
        assert_eq!(told, reply(&form()), "{era}");
        assert_eq!(client.asked.len(), 1, "{era}: {:?}", client.asked);
    }
}

#[test]
fn over_http_a_question_after_the_soft_deadline_comes_with_the_next_call() {
    let site = late("legacy").serve();
    let url = format!("http://{}", site.address);
    let mut client = Client::over(site.folder.clone(), &["connect", &url], &[]);
    client.initialize("2025-11-25", everything());
    client.answer_questions(reply);
    client.until_ready("shop");
    assert_eq!(by_task(&mut client, "shop.form"), reply(&form()));
    assert_eq!(client.asked.len(), 1, "{:?}", client.asked);
}

#[test]
fn a_model_that_does_not_answer_holds_no_call_past_the_soft_deadline() {
    let mut client = late("legacy").start_with(everything());
    client.answer_questions(|_| Value::Null);
    client.until_ready("shop");
    // The request is still open when the handle comes, and its answer counts.
    let told = by_task(&mut client, "shop.model");
    assert_eq!((&told["model"], client.asked.len()), (&json!("m1"), 1), "{told}");
}

/// Starts a scripted server at an address, on its own thread.
fn at_an_address(script: Value) -> String {
    let (sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            sender.send(listener.local_addr().expect("it is bound")).expect("somebody waits");
            fake::serve_http(script.into(), listener).await
        })
    });
    format!("url = 'http://{}/mcp'", address.recv().expect("it is bound"))
}

#[test]
fn over_http_each_client_is_asked_about_its_own_call() {
    let messages = tempfile::NamedTempFile::new().expect("a file");
    let keys = at_an_address(
        json!({ "tools": tools(), "era": "legacy", "sse": true, "message_log": messages.path() }),
    );
    let site = Setup::new().server_of("shop", &keys).serve();
    let url = format!("http://{}", site.address);
    let connected = |colour: &'static str| {
        let mut client = Client::over(site.folder.clone(), &["connect", &url], &[]);
        client.initialize("2025-11-25", everything());
        client.answer_questions(move |params| match params.get("message") {
            Some(_) => json!({ "action": "accept", "content": { "colour": colour } }),
            None => json!({ "roots": [{ "uri": format!("file:///{colour}") }] }),
        });
        client.until_ready("shop");
        client
    };
    let (mut first, mut second) = (connected("red"), connected("blue"));
    second.begin_call("shop__hang", json!({}));
    first.begin_call("shop__hang", json!({}));
    eventually("both calls have arrived", || {
        let hanging = logged(messages.path());
        (hanging.iter().filter(|line| line["params"]["name"] == "hang").count() == 2).then_some(())
    });
    for (client, colour) in [(&mut first, "red"), (&mut second, "blue")] {
        let form = json_of(&client.execute("shop.form", json!({})));
        assert_eq!(form["content"]["colour"], colour, "{form}");
        let roots = json_of(&client.execute("shop.roots", json!({})));
        assert_eq!(roots["roots"][0]["uri"], format!("file:///{colour}"), "{roots}");
    }
}

#[test]
fn an_answer_is_for_the_call_and_the_profile_that_asked() {
    let site = shop("legacy").toml("[profiles.other]").serve();
    let url = format!("http://{}", site.address);
    let mut client = Client::over(site.folder.clone(), &["connect", &url], &[]);
    until_ready(&mut client);
    let params = json!({ "name": "shop__form", "arguments": {} });
    let asked = client.modern("tools/call", params.clone(), everything())["result"].take();
    let mut again = params;
    let key =
        asked["inputRequests"].as_object().and_then(|all| all.keys().next()).expect("a request").clone();
    again["inputResponses"] = json!({ key: reply(&form()) });
    again["requestState"] = asked["requestState"].clone();
    let mut other = Client::over(site.folder.clone(), &["connect", &url, "--profile", "other"], &[]);
    let refused = other.modern("tools/call", again.clone(), everything());
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let mut elsewhere = again.clone();
    elsewhere["name"] = json!("shop__page");
    assert_eq!(client.modern("tools/call", elsewhere, everything())["error"]["code"], -32602);
    let done = client.modern("tools/call", again, everything());
    assert_eq!(json_of(&done["result"])["action"], "accept", "{done}");
}

#[test]
fn log_messages_reach_the_client_as_it_wants_them() {
    let mut client = shop("legacy").start();
    client.until_ready("shop");
    let heard = |client: &mut Client| {
        client.notifications.clear();
        client.execute("shop.loud", json!({}));
        client.notifications.iter().filter(|note| note["method"] == "notifications/message").count()
    };
    assert_eq!(heard(&mut client), 1);
    let set = client.request("logging/setLevel", json!({ "level": "emergency" }));
    assert!(set.get("result").is_some(), "{set}");
    assert_eq!(heard(&mut client), 0);
    let messages = client.folder.path().join("messages");
    eventually("the server is told", || {
        logged(&messages).iter().any(|line| line["method"] == "logging/setLevel").then_some(())
    });
}
