//! Rates of calls, and servers suspended because they keep failing.

use nonet_testing::RedisServer;
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually, json_of, logged},
    web::WebClient,
};

fn shop() -> Value {
    json!({ "tools": [{ "name": "buy" }, { "name": "look" }] })
}

#[test]
fn a_call_beyond_a_rate_is_refused_before_it_is_sent() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let mut script = shop();
    script["call_log"] = json!(log);
    let rates = "rate = '4/h'\n[servers.shop.tools.buy]\nrate = '2/h'\n";
    let mut client = setup.server_with("shop", script, rates).gateway("rate = '100/h'").start();
    client.until_ready("shop");
    for _ in 0..2 {
        assert_ne!(client.execute("shop.buy", json!({}))["isError"], true);
    }
    let fault = client.fault("shop.buy", json!({}));
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("rate_limited"), &json!(true)), "{fault}");
    assert!(
        fault["message"].as_str().is_some_and(|text| text.contains("servers.shop.tools.buy.rate = \"2/h\""))
    );
    // The first of two calls per hour is available again after half an hour.
    let wait = fault["retry_after_ms"].as_u64().expect("a wait");
    assert!((1_700_000..=1_800_001).contains(&wait), "{fault}");
    let actions = json!([{ "name": "shop.look" }, { "name": "shop.look" }, { "name": "shop.look" }]);
    let answer = client.call("run_parallel", json!({ "actions": actions })).to_string();
    assert_eq!(answer.matches("rate_limited").count(), 1, "{answer}");
    assert_eq!(logged(&log).len(), 4, "what is refused is not sent");
    let status = json_of(&client.execute("gateway.status", json!({})));
    assert_eq!(
        status["rates"],
        json!([
            { "rule": "gateway.rate", "rate": "100/h" },
            { "rule": "servers.shop.rate", "rate": "4/h", "refused": 1 },
            { "rule": "servers.shop.tools.buy.rate", "rate": "2/h", "refused": 1 },
        ])
    );
}

#[test]
fn after_the_wait_that_it_names_the_call_goes_through() {
    let mut client = Setup::new().server_with("shop", shop(), "rate = '2/s burst 1'").start();
    client.until_ready("shop");
    for _ in 0..3 {
        let wait = eventually("a call is refused", || {
            let result = client.execute("shop.buy", json!({}));
            (result["isError"] == true).then(|| json_of(&result)["error"]["retry_after_ms"].as_u64())?
        });
        std::thread::sleep(std::time::Duration::from_millis(wait));
        let result = client.execute("shop.buy", json!({}));
        assert_ne!(result["isError"], true, "{result}");
    }
}

#[test]
fn each_token_and_each_profile_has_its_own_rate() {
    let (owner, reader) = ("owner-0123456789abcdef", "reader-0123456789abcdef");
    let site = Setup::new()
        .server("shop", shop())
        .gateway(&format!("tokens = ['{owner}']\ntoken_rate = '2/h'"))
        .toml(&format!("[profiles.reader]\ntokens = ['{reader}']\nrate = '1/h'\n"))
        .serve();
    for (token, most, rule) in [(owner, 2, "gateway.token_rate"), (reader, 1, "profiles.reader.rate")] {
        let mut client = WebClient::with_token(&site.address, "/mcp", token);
        client.until_ready("shop");
        for n in 0..=most {
            let result = client.call("shop__buy", json!({}));
            assert_eq!(result["isError"] == true, n == most, "{result}");
            assert!(n < most || result.to_string().contains(rule), "{result}");
        }
        let status = client.answer("execute_tool", json!({ "name": "gateway.status" }));
        assert!(status["rates"].to_string().contains(rule), "{status}");
    }
}

#[test]
fn a_rate_holds_for_all_replicas_together() {
    let Some(redis) = RedisServer::start() else { return };
    // On a busy machine, Redis may answer too late; then each replica decides alone.
    for turn in 0..5 {
        let mut replicas = [(); 2].map(|()| {
            let setup = Setup::new().server_with("shop", shop(), "rate = '5/m'");
            let mut client =
                setup.toml(&format!("{}prefix = 'turn-{turn}'", redis.toml("one"))).start_program();
            client.until_ready("shop");
            client
        });
        let answers: Vec<Value> = (0..12).map(|n| replicas[n % 2].execute("shop.look", json!({}))).collect();
        if replicas.iter().any(|replica| replica.stderr().contains("Redis answers late")) {
            continue;
        }
        let is_refused = |answer: &&Value| answer["isError"] == true;
        assert_eq!(answers.iter().position(|answer| is_refused(&answer)), Some(5), "{answers:?}");
        assert_eq!(answers.iter().filter(is_refused).count(), 7, "{answers:?}");
        for refused in &answers[5..] {
            let fault = &json_of(refused)["error"];
            assert_eq!(fault["code"], "rate_limited", "{refused}");
            // One call per twelve seconds, less the time the test has taken.
            assert!(fault["retry_after_ms"].as_u64().is_some_and(|wait| wait <= 12_001), "{refused}");
        }
        return;
    }
    panic!("Redis was late each time");
}

#[test]
fn a_rate_that_is_none_is_a_fault_of_the_configuration() {
    let setup = Setup::new().server_with("shop", shop(), "rate = '60 per minute'").gateway("rate = '5/d'");
    setup.write();
    let output = command(setup.folder.path()).args(["check", "--json"]).output().expect("it runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &report["usable"]), (Some(2), &json!(false)), "{report}");
    let keys: Vec<&str> = report["faults"]
        .as_array()
        .expect("faults")
        .iter()
        .filter_map(|fault| fault["key"].as_str())
        .collect();
    assert_eq!(keys, ["gateway.rate", "servers.shop.rate"], "{report}");
    assert!(report["faults"][0]["remedy"].as_str().is_some_and(|text| text.contains("60/m")), "{report}");
}

/// Returns a server with a tool that crashes it this many times, and a working one.
fn crashing(times: usize) -> Value {
    let mut on = vec![json!({ "crash": true }); times];
    on.push(json!({ "text": "well" }));
    // Each process counts its calls from the first, so a crashed one crashes again.
    json!({ "tools": [{ "name": "crash", "on": on }, { "name": "fine", "on": { "text": "fine" } }] })
}

fn resting(client: &mut Client) -> Value {
    client.server("shop")["breaker"].take()
}

#[test]
fn a_tool_that_keeps_crashing_its_server_rests_and_the_others_are_called() {
    let mut client = Setup::new().server("shop", crashing(1)).start();
    client.until_ready("shop");
    for _ in 0..5 {
        assert_eq!(client.fault("shop.crash", json!({}))["code"], "server_down");
        assert_ne!(client.execute("shop.fine", json!({}))["isError"], true);
    }
    let fault = client.fault("shop.crash", json!({}));
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("upstream_error"), &json!(true)), "{fault}");
    let wait = fault["retry_after_ms"].as_u64().expect("a wait");
    assert!((1..=10_000).contains(&wait), "{fault}");
    let breaker = resting(&mut client);
    assert_eq!((&breaker["open"], &breaker["tools"]), (&json!("tools"), &json!(["crash"])), "{breaker}");
    let notice = client.until_notice("calls_paused");
    assert_eq!((&notice["server"], &notice["tool"]), (&json!("shop"), &json!("crash")), "{notice}");
    assert_ne!(client.execute("shop.fine", json!({}))["isError"], true);
}

#[test]
fn a_server_whose_tools_all_fail_rests() {
    let crash = json!({ "crash": true });
    let tools = json!({ "tools": [{ "name": "one", "on": crash }, { "name": "two", "on": crash }] });
    let mut client = Setup::new().server("shop", tools).start_program();
    client.until_ready("shop");
    for tool in ["shop.one", "shop.two", "shop.one", "shop.two", "shop.one"] {
        assert_eq!(client.fault(tool, json!({}))["code"], "server_down");
    }
    let fault = client.fault("shop.one", json!({}));
    assert_eq!(fault["code"], "server_down", "{fault}");
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("are paused")), "{fault}");
    assert_eq!(resting(&mut client)["open"], "server");
    eventually("the log says it", || {
        client.stderr().contains("it keeps failing, so its calls are paused").then_some(())
    });
}

#[test]
fn one_call_tries_what_rests_and_its_answer_ends_the_rest() {
    let hang = json!({ "hang": true });
    let on = json!([hang, hang, hang, hang, hang, { "text": "well" }]);
    let tools = json!({ "tools": [{ "name": "slow", "on": on }] });
    let mut client = Setup::new().server_with("shop", tools, "timeout = '100ms'").start();
    client.until_ready("shop");
    for _ in 0..5 {
        assert_eq!(client.fault("shop.slow", json!({}))["code"], "timeout");
    }
    eventually("a call is let through", || {
        let result = client.execute("shop.slow", json!({}));
        (result["isError"] != true).then_some(())
    });
    assert_eq!(resting(&mut client), Value::Null);
    client.until_notice("calls_resumed");
}

#[test]
fn a_caller_in_a_hurry_does_not_cut_off_the_others() {
    let tools = json!({ "tools": [{ "name": "slow", "on": { "delay_ms": 300, "text": "done" } }] });
    let mut client = Setup::new().server("shop", tools).start();
    client.until_ready("shop");
    for _ in 0..7 {
        let result = client.call("execute_tool", json!({ "name": "shop.slow", "timeout_ms": 20 }));
        assert_eq!(json_of(&result)["error"]["code"], "timeout", "{result}");
    }
    assert_ne!(client.execute("shop.slow", json!({}))["isError"], true);
    assert_eq!(resting(&mut client), Value::Null);
}
