//! Apps over a model, against a scripted endpoint over HTTP, and against clients that sample.

use nonet_state::session::Caller;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    client::Client,
    inside::{Inside, eventually},
    model_service::{Model, Reply, calls, events, says},
    setup::{self, Setup, json_of, logged, text_of},
};

fn shop() -> Value {
    let numbers =
        json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    json!([
        { "name": "stock", "description": "Counts what is left", "inputSchema": numbers, "annotations": { "readOnlyHint": true } },
        { "name": "buy", "description": "Buys", "inputSchema": numbers },
        { "name": "burn", "description": "Destroys everything" },
        { "name": "fail", "on": { "error": "out of order" } },
        { "name": "large", "on": { "size": 200_000 }, "annotations": { "readOnlyHint": true } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "secret", "on": { "text": "hidden" } },
    ])
}

/// Returns the app `clerk` over a model, with these further keys.
fn clerk(model: &Model, keys: &str) -> String {
    format!(
        "[apps.clerk]\nmodel = {{ base_url = '{}', name = 'm1', api_key = 'key-0123456789' }}\nsystem = 'You are a clerk.'\n\
         allowed_tools = ['shop.stock', 'shop.b*', 'shop.fail', 'shop.large', 'shop.hang']\n{keys}\n\
         [servers.shop.tools.burn]\npolicy = 'approve'\n",
        model.base_url()
    )
}

async fn open(model: &Model, keys: &str) -> Inside {
    Setup::new().server("shop", json!({ "tools": shop() })).toml(&clerk(model, keys)).open().await
}

async fn ask(inside: &Inside, input: Value) -> Value {
    inside.answer("call_app", json!({ "app_id": "clerk", "input": input })).await
}

async fn fault(inside: &Inside, timeout: u64) -> Value {
    inside.fault("call_app", json!({ "app_id": "clerk", "input": "Go", "timeout": timeout })).await
}

/// Returns the results of the model's calls, from the last request.
fn results(model: &Model) -> Vec<String> {
    let requests = model.requests();
    let messages = requests.last().expect("a request")["messages"].as_array().expect("messages").clone();
    let results = messages.iter().filter(|message| message["role"] == "tool");
    results.map(|message| message["content"].as_str().expect("text").to_string()).collect()
}

#[tokio::test]
async fn a_model_answers_whole_or_by_events() {
    for reply in [Reply::Json(says("Five are left.")), events(&says("Five are left."))] {
        let model = Model::start([reply]);
        let inside = open(&model, "max_tokens = 100").await;
        let told = ask(&inside, json!("How many?")).await;
        let expected = json!({ "app_id": "clerk", "output": "Five are left.", "tool_calls": 0, "turns": 1 });
        assert_eq!(told, expected);
        let request = &model.requests()[0];
        assert_eq!(
            request["messages"],
            json!([{ "role": "system", "content": "You are a clerk." }, { "role": "user", "content": "How many?" }])
        );
        assert_eq!(
            (&request["model"], &request["max_tokens"], &request["stream"]),
            (&json!("m1"), &json!(100), &json!(true))
        );
        let names: Vec<&str> = request["tools"]
            .as_array()
            .expect("tools")
            .iter()
            .filter_map(|tool| tool["function"]["name"].as_str())
            .collect();
        let expected = [
            "gateway__fetch_result",
            "shop__burn",
            "shop__buy",
            "shop__fail",
            "shop__hang",
            "shop__large",
            "shop__stock",
        ];
        assert_eq!(names, expected, "only what is allowed");
        assert_eq!(model.authorizations(), ["Bearer key-0123456789"]);
    }
}

#[tokio::test]
async fn a_model_calls_tools_until_it_has_an_answer() {
    for form in [Reply::Json, |message: Value| events(&message)] {
        let model = Model::start([
            form(calls(&[("c1", "shop__stock", "{\"n\": 3}"), ("c2", "shop__buy", "{\"n\": \"4\"}")])),
            form(calls(&[("c3", "shop__fail", "")])),
            form(says("Done.")),
        ]);
        let inside = open(&model, "").await;
        let told = ask(&inside, json!({ "wish": "all" })).await;
        assert_eq!(told, json!({ "app_id": "clerk", "output": "Done.", "tool_calls": 3, "turns": 3 }));
        let requests = model.requests();
        assert_eq!(requests[0]["messages"][1]["content"], "{\"wish\":\"all\"}");
        let second = requests[1]["messages"].as_array().expect("messages").clone();
        assert_eq!(second[2]["tool_calls"][0]["id"], "c1", "{second:?}");
        assert_eq!((&second[3]["tool_call_id"], &second[3]["content"]), (&json!("c1"), &json!("{\"n\":3}")));
        assert_eq!(second[4]["tool_call_id"], "c2");
        let bought = second[4]["content"].as_str().expect("text");
        assert!(bought.starts_with("{\"n\":4}") && bought.contains("params_repaired"), "{bought}");
        assert_eq!(results(&model)[2], "out of order");
    }
}

#[tokio::test]
async fn an_endpoint_without_tools_is_served_by_text() {
    let refusal = |text: &str| {
        Reply::Raw(400, "application/json".into(), json!({ "error": { "message": text } }).to_string())
    };
    let tagged = "<tool_call>\n{\"name\": \"shop__stock\", \"arguments\": {\"n\": 3}}\n</tool_call>";
    let plain = "```json\n{\"tool\": \"shop__buy\", \"arguments\": {\"n\": 4}}\n```";
    let model = Model::start([
        refusal("registry.ollama.ai/library/gemma:2b does not support tools"),
        Reply::Json(says(tagged)),
        Reply::Json(says(plain)),
        Reply::Json(says("Done.")),
    ]);
    let told = ask(&open(&model, "").await, json!("Go")).await;
    let note = "The model's endpoint does not support tools: calls were read from the model's text.";
    assert_eq!(
        told,
        json!({ "app_id": "clerk", "output": "Done.", "tool_calls": 2, "turns": 3, "note": note })
    );
    let requests = model.requests();
    assert!(requests[0]["tools"].is_array(), "{requests:?}");
    // What is known of the endpoint holds for the whole run.
    assert_eq!(requests.len(), 4);
    for request in &requests[1..] {
        assert_eq!(request.get("tools"), None, "{request}");
        let system = request["messages"][0]["content"].as_str().expect("text");
        assert!(
            system.starts_with("You are a clerk.") && system.contains("- shop__stock: Counts what is left")
        );
    }
    let last = &requests[3]["messages"];
    let roles: Vec<&Value> = last.as_array().expect("messages").iter().map(|one| &one["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant", "user"], "{last}");
    assert_eq!((&last[2]["content"], &last[4]["content"]), (&json!(tagged), &json!(plain)));
    assert_eq!(last[3]["content"], "The result of `shop__stock`:\n{\"n\":3}");
    assert!(last[5]["content"].as_str().is_some_and(|text| text.contains("{\"n\":4}")), "{last}");

    // An endpoint that takes tools and does not read the model's calls.
    let model = Model::start([Reply::Json(says(tagged)), Reply::Json(says("Three."))]);
    let told = ask(&open(&model, "").await, json!("Go")).await;
    assert_eq!(told, json!({ "app_id": "clerk", "output": "Three.", "tool_calls": 1, "turns": 2 }));
    let second = &model.requests()[1];
    assert!(second["tools"].is_array(), "one such text says nothing of the endpoint: {second}");
    assert_eq!(second["messages"][2]["content"], Value::Null, "the call is repeated once: {second}");
    let quoted = format!("The page says {tagged}");
    let model = Model::start([Reply::Json(says(&quoted))]);
    let told = ask(&open(&model, "").await, json!("Read it")).await;
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!(quoted), &json!(0)), "quoted, not called");

    let model = Model::start([
        refusal("Streaming is not supported by this deployment."),
        Reply::Json(calls(&[("c1", "shop__stock", "{\"n\": 3}")])),
        Reply::Json(says("Three.")),
    ]);
    let told = ask(&open(&model, "").await, json!("Go")).await;
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!("Three."), &json!(1)), "{told}");
    assert!(told["note"].as_str().is_some_and(|note| note.contains("does not support streaming")), "{told}");
    let streams: Vec<Value> = model.requests().iter().map(|request| request["stream"].clone()).collect();
    assert_eq!(streams, [true, false, false]);
}

#[tokio::test]
async fn a_model_may_correct_what_it_got_wrong() {
    let model = Model::start([
        Reply::Json(calls(&[
            ("c1", "shop__stock", "{\"n\": "),
            ("c2", "shop__stok", "{}"),
            ("c3", "shop__stock", "{\"n\": \"many\"}"),
        ])),
        Reply::Json(calls(&[("c4", "shop__stock", "{\"n\": 1}")])),
        Reply::Json(says("One.")),
    ]);
    let inside = open(&model, "").await;
    let told = ask(&inside, json!("?")).await;
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!("One."), &json!(4)), "{told}");
    let results = results(&model);
    assert!(results[0].contains("are not JSON") && results[0].contains("{\\\"n\\\": "), "{}", results[0]);
    assert!(results[1].contains("unknown_tool") && results[1].contains("shop.stock"), "{}", results[1]);
    assert!(results[2].contains("invalid_params") && results[2].contains("integer"), "{}", results[2]);
    assert!(
        !results.iter().any(|text| text.contains("next_step")),
        "the model has no meta-tools: {results:?}"
    );
    assert_eq!(results[3], "{\"n\":1}");
    // Endpoints refuse arguments that are not JSON.
    assert_eq!(model.requests()[1]["messages"][2]["tool_calls"][0]["function"]["arguments"], "{}");
}

#[tokio::test]
async fn what_is_not_allowed_is_refused_to_the_model() {
    let model = Model::start([
        Reply::Json(calls(&[
            ("c1", "shop__secret", "{}"),
            ("c2", "shop__burn", "{}"),
            ("c3", "call_app", "{\"app_id\": \"clerk\"}"),
            ("c4", "gateway__background_run", "{\"name\": \"shop.secret\"}"),
            ("c5", "gateway__status", "{}"),
        ])),
        Reply::Json(says("I could not.")),
    ]);
    let log = tempfile::NamedTempFile::new().expect("a file");
    let script = json!({ "tools": shop(), "call_log": log.path() });
    let inside = Setup::new().server("shop", script).toml(&clerk(&model, "")).open().await;
    ask(&inside, json!("Burn it")).await;
    let results = results(&model);
    assert!(
        results[0].contains("apps.clerk.allowed_tools") && results[0].contains("forbidden"),
        "{}",
        results[0]
    );
    assert!(
        results[1].contains("needs_approval") && results[1].contains("nobody can be asked"),
        "{}",
        results[1]
    );
    assert!(results[2].contains("meta-tool"), "{}", results[2]);
    assert!(results[3].contains("forbidden") && results[4].contains("forbidden"), "{results:?}");
    assert_eq!(logged(log.path()), Vec::<Value>::new(), "nothing was called");
}

#[tokio::test]
async fn a_profile_limits_its_apps() {
    let model =
        Model::start([Reply::Json(calls(&[("c1", "shop__buy", "{\"n\": 1}")])), Reply::Json(says("No."))]);
    let toml = clerk(&model, "") + "[profiles.guest]\nonly = ['shop.stock']\n";
    let inside = Setup::new().server("shop", json!({ "tools": shop() })).toml(&toml).open().await;
    let guest = inside.under("guest");
    inside.call_as(&guest, "call_app", json!({ "app_id": "clerk", "input": "Buy" })).await;
    assert_eq!(model.requests()[0]["tools"].as_array().map(Vec::len), Some(2), "{}", model.requests()[0]);
    assert!(results(&model)[0].contains("profiles.guest.only"), "{:?}", results(&model));
}

#[tokio::test]
async fn above_twenty_tools_the_model_searches_among_those_allowed() {
    let model = Model::start([
        Reply::Json(calls(&[
            ("c1", "search_tools", "{\"query\": \"tool 0007\"}"),
            ("c2", "list_categories", ""),
        ])),
        Reply::Json(calls(&[
            ("c3", "execute_tool", "{\"name\": \"many.tool_0007\", \"params\": {\"value\": \"{{c1.y}}\"}}"),
            ("c4", "execute_tool", "{\"name\": \"other.thing\"}"),
            (
                "c5",
                "run_parallel",
                "{\"actions\": [{\"name\": \"other.thing\"}, {\"name\": \"many.tool_0001\"}]}",
            ),
            ("c6", "get_tool", "{\"name\": \"other.thing\"}"),
            ("c7", "ask_user", "{\"question\": \"May I?\"}"),
            ("c8", "browse_category", "{\"category\": \"many\", \"page_size\": 3}"),
        ])),
        Reply::Json(says("Done.")),
    ]);
    let toml = format!(
        "[apps.clerk]\nmodel = {{ base_url = '{}', name = 'm' }}\nallowed_tools = ['many.*']\n",
        model.base_url()
    );
    let setup = Setup::new().server("many", json!({ "tool_count": 25 }));
    let inside = setup.server("other", json!({ "tools": [{ "name": "thing" }] })).toml(&toml).open().await;
    let told = ask(&inside, json!("Go")).await;
    assert_eq!((&told["turns"], &told["tool_calls"]), (&json!(3), &json!(8)), "{told}");
    let requests = model.requests();
    let names: Vec<&Value> = requests[0]["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| &tool["function"]["name"])
        .collect();
    let six =
        ["search_tools", "get_tool", "execute_tool", "list_categories", "browse_category", "run_parallel"];
    assert_eq!(names, six);
    assert_eq!(model.authorizations(), [""; 3], "no key, no header");
    let results = results(&model);
    assert!(results[0].contains("many.tool_0007") && !results[0].contains("other"), "{}", results[0]);
    assert!(results[1].contains("many") && !results[1].contains("other"), "{}", results[1]);
    assert_eq!(results[2], "{\"value\":\"{{c1.y}}\"}", "braces of a model are text");
    assert!(results[3].contains("forbidden"), "{}", results[3]);
    let parallel: Value = serde_json::from_str(&results[4]).expect("JSON");
    assert_eq!((&parallel["succeeded"], &parallel["failed"]), (&json!(1), &json!(1)), "{parallel}");
    assert!(results[5].contains("forbidden"), "{}", results[5]);
    assert!(results[6].contains("not for apps"), "{}", results[6]);
    assert!(results[7].contains("\"total\":25"), "{}", results[7]);
}

#[tokio::test]
async fn a_large_result_is_a_preview_that_the_model_can_read_on_in() {
    let model = Model::start([Reply::Json(calls(&[("c1", "shop__large", "")])), Reply::Json(says("Long."))]);
    let inside = open(&model, "").await;
    ask(&inside, json!("Read")).await;
    let result = results(&model).remove(0);
    assert!(result.len() < 10_000 && result.contains("\"ref\":\"r-"), "{result}");
    assert!(result.contains("fetch_result"), "{result}");
}

#[tokio::test]
async fn an_answer_that_is_no_completion_is_a_fault_with_its_beginning() {
    let raw = |kind: &str, body: &str| Reply::Raw(200, kind.into(), body.into());
    for (reply, expected) in [
        (raw("text/html", "<html><body>Welcome</body></html>"), "<html><body>Welcome"),
        (raw("application/json", "{\"choices\": [{\"message\""), "not a chat completion"),
        (raw("application/json", "{\"choices\": []}"), "no `choices`"),
        (raw("application/json", ""), "not a chat completion"),
        (raw("text/event-stream", "data: {oops\n\n"), "{oops"),
        (raw("application/json", "{\"error\": {\"message\": \"no key-0123456789\"}}"), "no ***"),
        (Reply::Json(json!({ "choices": [{ "message": { "content": null } }] })), "neither text nor"),
        (
            Reply::Raw(404, "application/json".into(), "{\"error\": {\"message\": \"no model m1\"}}".into()),
            "no model m1",
        ),
        (Reply::Raw(302, "text/html".into(), "moved".into()), "HTTP 302"),
    ] {
        let model = Model::start([reply]);
        let inside = open(&model, "").await;
        let fault = fault(&inside, 60).await;
        assert_eq!(fault["code"], "upstream_error", "{fault}");
        let message = fault["message"].as_str().expect("text");
        assert!(message.contains(expected) && message.contains("`clerk`"), "{fault}");
        assert!(!fault.to_string().contains("key-0123456789"), "{fault}");
        assert_eq!(model.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_refused_key_names_the_key_to_check_and_does_not_show_it() {
    for status in [401, 403] {
        let model =
            Model::start([Reply::Raw(status, "text/plain".into(), "bad key: key-0123456789!".into())]);
        let inside = open(&model, "").await;
        let fault = fault(&inside, 60).await;
        assert_eq!(fault["code"], "auth_required", "{fault}");
        let message = fault["message"].as_str().expect("text");
        assert!(
            message.contains("bad key: ***!") && message.contains("`api_key` of `apps.clerk.model`"),
            "{fault}"
        );
    }
    let model = Model::start([Reply::Json(says("Your key is key-0123456789."))]);
    assert_eq!(ask(&open(&model, "").await, json!("?")).await["output"], "Your key is ***.");
}

#[test]
fn a_key_of_the_environment_is_in_no_log() {
    let model = Model::start([
        Reply::Busy(500),
        Reply::Json(calls(&[("c1", "shop__stock", "{\"n\": 1}")])),
        Reply::Raw(400, "text/plain".into(), "bad key-of-the-user".into()),
    ]);
    let toml = clerk(&model, "").replace("key-0123456789", "${MODEL_KEY}");
    let setup = Setup::new().server("shop", json!({ "tools": shop() })).toml(&toml);
    let mut client = setup.run_with(&[], &[("MODEL_KEY", "key-of-the-user"), ("NONET_LOG", "trace")]);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    let told = client.call("call_app", json!({ "app_id": "clerk", "input": "?" }));
    assert!(text_of(&told).contains("bad ***"), "{told}");
    assert_eq!(model.authorizations(), ["Bearer key-of-the-user"; 3]);
    let log = setup::eventually("the log has the call", || {
        Some(client.stderr()).filter(|log| log.contains("shop.stock"))
    });
    assert!(!log.contains("key-of-the-user"), "the log has no key");
}

#[tokio::test]
async fn a_busy_endpoint_is_asked_again() {
    let model = Model::start([Reply::Busy(429), Reply::Busy(503), Reply::Broken, events(&says("Now."))]);
    let inside = open(&model, "").await;
    assert_eq!(ask(&inside, json!("?")).await["output"], "Now.");
    assert_eq!(model.requests().len(), 4);
    let model = Model::start([Reply::Busy(429)]);
    let inside = open(&model, "").await;
    let fault = fault(&inside, 60).await;
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("rate_limited"), &json!(true)), "{fault}");
    assert_eq!(model.requests().len(), 4, "three more tries");
}

#[tokio::test]
async fn the_limit_on_tokens_has_two_names_and_is_told_when_it_cuts() {
    let refusal = "{\"error\": {\"message\": \"Use 'max_completion_tokens' instead.\"}}";
    let mut cut = says("Once upon");
    cut["choices"][0]["finish_reason"] = json!("length");
    let model = Model::start([Reply::Raw(400, "application/json".into(), refusal.into()), Reply::Json(cut)]);
    let inside = open(&model, "max_tokens = 7").await;
    let told = ask(&inside, json!("?")).await;
    assert_eq!(told["output"], "Once upon");
    assert!(told["cut_off"].as_str().is_some_and(|text| text.contains("limit on tokens")), "{told}");
    let last = &model.requests()[1];
    assert_eq!((&last["max_completion_tokens"], last.get("max_tokens")), (&json!(7), None));
}

#[tokio::test]
async fn an_endpoint_that_never_answers_ends_with_timeout() {
    let model = Model::start([Reply::Json(calls(&[("c1", "shop__stock", "{\"n\": 1}")])), Reply::Hang]);
    let inside = open(&model, "timeout = '30s'").await;
    let told = fault(&inside, 1).await;
    assert_eq!(told["code"], "timeout", "{told}");
    assert_eq!((&told["details"]["turns"], &told["details"]["tool_calls"]), (&json!(1), &json!(1)), "{told}");
    // The configuration's limit applies if the call has none.
    let model = Model::start([Reply::Json(calls(&[("c1", "shop__hang", "")]))]);
    let inside = open(&model, "timeout = '1s'").await;
    let fault = inside.fault("call_app", json!({ "app_id": "clerk", "input": "Go" })).await;
    assert_eq!(fault["code"], "timeout", "{fault}");
}

#[tokio::test]
async fn calls_of_one_answer_run_at_the_same_time_unless_they_change_something() {
    for (other, runs) in [("stock", true), ("buy", false)] {
        let other_call = format!("shop__{other}");
        let model = Model::start([Reply::Json(calls(&[
            ("c1", "shop__hang", ""),
            ("c2", &other_call, "{\"n\": 1}"),
        ]))]);
        let log = tempfile::NamedTempFile::new().expect("a file");
        let script = json!({ "tools": shop(), "call_log": log.path() });
        let inside = Setup::new().server("shop", script).toml(&clerk(&model, "")).open().await;
        assert_eq!(fault(&inside, 1).await["code"], "timeout");
        let called = logged(log.path()).iter().any(|line| line.to_string().contains(other));
        assert_eq!(called, runs, "{other}");
    }
}

#[tokio::test]
async fn a_cancelled_app_ends_its_request() {
    let model = Model::start([Reply::Hang]);
    let inside = open(&model, "").await;
    let caller = Caller { cancel: CancellationToken::new(), ..inside.caller.clone() };
    let call = inside.call_as(&caller, "call_app", json!({ "app_id": "clerk", "input": "Go" }));
    let cancel = async {
        eventually("the model is asked", async || (!model.requests().is_empty()).then_some(())).await;
        caller.cancel.cancel();
    };
    let (told, ()) = tokio::join!(call, cancel);
    assert_eq!(json_of(&told)["error"]["code"], "cancelled", "{told}");
    eventually("the request is gone", async || (model.dropped() == 1).then_some(())).await;
}

#[tokio::test]
async fn out_of_turns_is_an_error_with_the_last_text() {
    let mut wish = calls(&[("c1", "shop__stock", "{\"n\": 1}")]);
    wish["choices"][0]["message"]["content"] = json!("Let me count.");
    let model = Model::start([Reply::Json(wish)]);
    let inside = open(&model, "max_turns = 3").await;
    let fault = fault(&inside, 60).await;
    assert_eq!(fault["code"], "upstream_error", "{fault}");
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("its 3 turns")), "{fault}");
    let expected = json!({ "app_id": "clerk", "turns": 3, "tool_calls": 2, "last_text": "Let me count." });
    assert_eq!(fault["details"], expected);
    assert_eq!(model.requests().len(), 3);
}

#[test]
fn an_app_that_takes_long_goes_on_and_tells_its_turns() {
    let model = Model::start([
        Reply::Json(calls(&[("c1", "shop__stock", "{\"n\": 1}")])),
        Reply::Held(says("At last.")),
    ]);
    let setup = Setup::new().server("shop", json!({ "tools": shop() })).gateway("soft_deadline = '1s'");
    let mut client = setup.toml(&clerk(&model, "")).start();
    client.until_ready("shop");
    let arguments = json!({ "app_id": "clerk", "input": "?" });
    let params = json!({ "name": "call_app", "arguments": arguments, "_meta": { "progressToken": 7 } });
    let handle = json_of(&client.request("tools/call", params)["result"]);
    assert_eq!((&handle["state"], &handle["tool"]), (&json!("running"), &json!("app clerk")), "{handle}");
    let told: Vec<&Value> = client.notifications.iter().map(|note| &note["params"]["message"]).collect();
    assert_eq!(
        told,
        [
            "turn 1 of 10: the model is answering",
            "turn 1 of 10: calling shop__stock",
            "turn 2 of 10: the model is answering"
        ]
    );
    let status = json_of(&client.execute("gateway.background_run", json!({ "task_id": handle["task_id"] })));
    assert!(status.to_string().contains("turn 2 of 10"), "{status}");
    model.release();
    let done =
        client.execute("gateway.background_run", json!({ "task_id": handle["task_id"], "wait": true }));
    assert!(text_of(&done).contains("At last."), "{done}");
}

#[test]
fn an_app_whose_key_is_not_set_says_so() {
    let model = Model::start([]);
    let toml = clerk(&model, "").replace("key-0123456789", "${NO_SUCH_KEY}");
    let mut client = Setup::new().server("shop", json!({ "tools": shop() })).toml(&toml).start_program();
    let told = client.answer("call_app", json!({ "app_id": "clerk", "input": "?" }));
    let message = told["error"]["message"].as_str().expect("a fault");
    assert!(message.contains("the environment variable `NO_SUCH_KEY` is not set"), "{message}");
    let listed = client.answer("call_app", json!({}));
    assert_eq!(
        (&listed["apps"], &listed["left_out"][0]["app_id"]),
        (&json!([]), &json!("clerk")),
        "{listed}"
    );
}

#[tokio::test]
async fn an_app_over_a_model_is_listed_with_it() {
    let model = Model::start([]);
    let inside = open(&model, "description = 'Counts and buys'").await;
    let told = inside.answer("call_app", json!({})).await;
    assert_eq!(told["apps"], json!([{ "app_id": "clerk", "description": "Counts and buys", "model": "m1" }]));
}

const SAMPLING: &str =
    "[apps.clerk]\nmodel = 'client'\nsystem = 'You are a clerk.'\nallowed_tools = ['shop.stock']\n";

fn sampled() -> Setup {
    Setup::new().server("shop", json!({ "tools": shop() })).toml(SAMPLING)
}

/// A client's model that supports tools: calls one, then answers.
fn with_tools(params: &Value) -> Value {
    let messages = params["messages"].as_array().expect("messages");
    let (content, reason) = match messages.len() {
        1 => (
            json!([{ "type": "text", "text": "I count." }, { "type": "tool_use", "id": "t1", "name": "shop__stock", "input": { "n": 5 } }]),
            "toolUse",
        ),
        _ => {
            let result = &messages[2]["content"];
            assert_eq!(
                (&result["type"], &result["toolUseId"]),
                (&json!("tool_result"), &json!("t1")),
                "{params}"
            );
            assert_eq!(result["content"][0]["text"], "{\"n\":5}", "{params}");
            (json!({ "type": "text", "text": "Five." }), "endTurn")
        }
    };
    assert_eq!(params["systemPrompt"], "You are a clerk.");
    assert_eq!(params["tools"][1]["name"], "shop__stock", "{params}");
    json!({ "role": "assistant", "content": content, "model": "own", "stopReason": reason })
}

/// A client's model without tool support: the system text describes the tools.
fn in_words(params: &Value) -> Value {
    let messages = params["messages"].as_array().expect("messages");
    let system = params["systemPrompt"].as_str().expect("text");
    assert!(
        system.starts_with("You are a clerk.") && system.contains("shop__stock: Counts what is left"),
        "{system}"
    );
    assert_eq!(params.get("tools"), None, "{params}");
    let text = match messages.len() {
        1 => "{\"tool\": \"shop__stock\", \"arguments\": {\"n\": 5}}",
        _ => {
            assert!(
                messages[2]["content"]["text"].as_str().is_some_and(|text| text.contains("{\"n\":5}")),
                "{params}"
            );
            "Five."
        }
    };
    json!({ "role": "assistant", "content": { "type": "text", "text": text }, "model": "own", "stopReason": "endTurn" })
}

fn expected() -> Value {
    json!({ "app_id": "clerk", "output": "Five.", "tool_calls": 1, "turns": 2 })
}

type Sampler = fn(&Value) -> Value;

fn samplers() -> [(Value, Sampler); 2] {
    [(json!({ "sampling": { "tools": {} } }), with_tools), (json!({ "sampling": {} }), in_words)]
}

#[test]
fn a_client_of_the_session_era_lends_its_model() {
    for (capabilities, sampler) in samplers() {
        let mut client = sampled().start_silently();
        client.initialize("2025-11-25", capabilities);
        client.answer_questions(sampler);
        client.until_ready("shop");
        assert_eq!(client.answer("call_app", json!({ "app_id": "clerk", "input": "How many?" })), expected());
        assert_eq!(client.asked.len(), 2);
    }
}

fn until_ready(client: &mut Client) {
    crate::setup::eventually("`shop` is ready", || {
        let params = json!({ "name": "execute_tool", "arguments": { "name": "gateway.status" } });
        let status = json_of(&client.modern("tools/call", params, json!({}))["result"]);
        (status["servers"][0]["state"] == "ready" && status["servers"][0]["tools"] != 0).then_some(())
    });
}

#[test]
fn a_stateless_client_lends_its_model() {
    for (capabilities, sampler) in samplers() {
        let mut client = sampled().start_silently();
        until_ready(&mut client);
        let call = json!({ "name": "call_app", "arguments": { "app_id": "clerk", "input": "How many?" } });
        let mut params = call.clone();
        let mut rounds = 0;
        let done = loop {
            let result = client.modern("tools/call", params, capabilities.clone())["result"].take();
            if result["resultType"] == "complete" {
                break result;
            }
            rounds += 1;
            let requests = result["inputRequests"].as_object().expect("requests");
            let answers: serde_json::Map<String, Value> =
                requests.iter().map(|(key, request)| (key.clone(), sampler(&request["params"]))).collect();
            params = call.clone();
            params["inputResponses"] = Value::Object(answers);
            params["requestState"] = result["requestState"].clone();
        };
        assert_eq!((json_of(&done), rounds), (expected(), 2));
    }
}

#[test]
fn a_client_without_a_model_is_told_what_to_set() {
    let mut client = sampled().start();
    let told = client.answer("call_app", json!({ "app_id": "clerk", "input": "How many?" }));
    let message = told["error"]["message"].as_str().expect("a fault");
    assert!(message.contains("sampling") && message.contains("apps.clerk.model = { base_url"), "{message}");
    // A client that fails to answer: its own error is passed on.
    let mut client = sampled().start_with(json!({ "sampling": {} }));
    client.until_ready("shop");
    let told = client.answer("call_app", json!({ "app_id": "clerk", "input": "How many?" }));
    assert!(told["error"]["message"].as_str().is_some_and(|text| text.contains("not here")), "{told}");
}
