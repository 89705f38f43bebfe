//! Several gateways over one Redis, each addressed directly, as behind a balancer without knowledge of
//! sessions.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use nonet_testing::RedisServer;
use serde_json::{Value, json};

use crate::{
    setup::{PATIENCE, Setup, eventually, json_of},
    web::{Site, WebClient, http, modern, own_header},
};

fn replica(redis: &RedisServer, name: &str) -> Setup {
    Setup::new().toml(&redis.toml(name)).server(
        "shop",
        json!({
            "resources": [{ "uri": "note://a", "text": "a" }],
            "tools": [
                { "name": "echo" },
                { "name": "wait", "on": { "delay_ms": 1_500, "text": "waited" } },
                { "name": "slow", "on": { "delay_ms": 4_000, "text": "slept" } },
                { "name": "endless", "on": { "delay_ms": 60_000 } },
                { "name": "touch", "on": { "touch": "note://a", "text": "done" } },
            ],
        }),
    )
}

fn two() -> Option<(RedisServer, Site, Site)> {
    let redis = RedisServer::start()?;
    let (one, two) = (replica(&redis, "one").serve_program(), replica(&redis, "two").serve_program());
    for site in [&one, &two] {
        WebClient::new(&site.address, "/mcp").until_ready("shop");
    }
    // Each replica has seen the other.
    for site in [&one, &two] {
        eventually("both are known", || {
            let status = WebClient::new(&site.address, "/mcp")
                .answer("execute_tool", json!({ "name": "gateway.status" }));
            (status["cluster"]["replicas"].as_array()?.len() == 2).then_some(())
        });
    }
    Some((redis, one, two))
}

/// Returns the same client at another replica.
fn at(client: &WebClient, site: &Site) -> WebClient {
    WebClient::resumed(&site.address, &client.path, &client.session, &client.authorization)
}

fn echo(client: &mut WebClient, text: &str) {
    assert_eq!(client.answer("shop__echo", json!({ "text": text })), json!({ "text": text }));
}

pub fn ends(mut site: Site, signal: Signal) -> Site {
    kill(Pid::from_raw(site.pid() as i32), signal).expect("it runs");
    if signal == Signal::SIGKILL {
        site.child().wait().expect("it ended");
    }
    site
}

/// Opens a session's GET stream, to be read line by line.
fn stream(client: &WebClient) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(&client.address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    write!(
        stream,
        "GET /mcp HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\nmcp-session-id: {}\r\nmcp-protocol-version: 2025-06-18\r\n{}\r\n",
        client.address,
        client.session,
        own_header(&client.address)
    )
    .expect("sent");
    BufReader::new(stream)
}

fn reads_until(stream: &mut BufReader<TcpStream>, text: &str) {
    let mut line = String::new();
    while stream.read_line(&mut line).expect("the stream is open") > 0 {
        if line.contains(text) {
            return;
        }
        line.clear();
    }
    panic!("the stream ended without {text}");
}

#[test]
fn a_session_is_good_at_every_replica() {
    let Some((_redis, one, two)) = two() else { return };
    let mut client = WebClient::new(&one.address, "/mcp");
    echo(&mut client, "at one");
    let mut there = at(&client, &two);
    echo(&mut there, "through two");
    // A longer call answers with events.
    assert_eq!(there.call("shop__wait", json!({}))["content"][0]["text"], "waited");
    // So does the session's stream.
    let mut events = stream(&there);
    let taken = there.request("resources/subscribe", json!({ "uri": "note://a" }));
    assert!(taken.answer().get("result").is_some(), "{taken:?}");
    reads_until(&mut events, "event-stream");
    client.call("shop__touch", json!({}));
    reads_until(&mut events, "notifications/resources/updated");
    // Text written by a model cannot pass for a replica's mark.
    let headers =
        [("mcp-session-id", client.session.as_str()), ("x-nonet-replica", "0123456789abcdef01234567")];
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" }).to_string();
    assert_eq!(http(&two.address, "POST", "/mcp", &headers, &body).status, 200);
    // The session ends for all replicas.
    let deleted = http(&two.address, "DELETE", "/mcp", &[("mcp-session-id", &client.session)], "");
    assert_eq!(deleted.status, 204, "{deleted:?}");
    for site in [&one, &two] {
        let reply = at(&client, site).request("ping", json!({}));
        assert_eq!(reply.status, 404, "{reply:?}");
    }
    let made_up = WebClient::resumed(&two.address, "/mcp", "0123-80000001-0123456789abcdef01234567", "");
    assert_eq!(made_up.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })).status, 404);
}

#[test]
fn a_session_goes_on_when_its_replica_was_killed() {
    let Some((_redis, one, two)) = two() else { return };
    let mut client = WebClient::new(&one.address, "/mcp");
    let taken = client.request("resources/subscribe", json!({ "uri": "note://a" }));
    assert!(taken.answer().get("result").is_some(), "{taken:?}");
    std::thread::sleep(Duration::from_millis(1_500));

    // A call in flight is lost, and its error says so.
    let mut there = at(&client, &two);
    let waiting = std::thread::spawn(move || (there.call("shop__wait", json!({})), there));
    std::thread::sleep(Duration::from_millis(700));
    let one = ends(one, Signal::SIGKILL);
    let (lost, mut there) = waiting.join().expect("an answer");
    assert_eq!(lost["isError"], true, "{lost}");
    let fault = &json_of(&lost)["error"];
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("server_down"), &json!(true)), "{fault}");
    assert_eq!(fault["details"]["may_have_run"], true, "{fault}");

    // The next request takes the session over, including its subscriptions.
    let began = Instant::now();
    echo(&mut there, "again");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let mut events = stream(&there);
    reads_until(&mut events, "event-stream");
    eventually("the subscription is there again", || {
        there.call("shop__touch", json!({}));
        let mut line = String::new();
        while events.read_line(&mut line).is_ok_and(|read| read > 0) {
            if line.contains("notifications/resources/updated") {
                return Some(());
            }
            line.clear();
        }
        None
    });
    drop(one);
}

#[test]
fn a_replica_that_is_told_to_stop_hands_its_sessions_over() {
    let Some((_redis, one, two)) = two() else { return };
    let mut client = WebClient::new(&one.address, "/mcp");
    let mut idle = WebClient::new(&one.address, "/mcp");
    let mut there = at(&client, &two);
    let waiting = std::thread::spawn(move || (there.call("shop__wait", json!({})), there));
    std::thread::sleep(Duration::from_millis(300));
    let mut one = ends(one, Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    // The replica still answers, but accepts no new clients.
    let ready = http(&one.address, "GET", "/readyz", &[], "");
    assert_eq!(ready.status, 503, "{ready:?}");
    echo(&mut at(&idle, &two), "idle, at two");
    echo(&mut idle, "idle, through one");
    // A call in flight finishes where it began.
    echo(&mut client, "meanwhile");
    let (answer, mut there) = waiting.join().expect("an answer");
    assert_eq!(answer["content"][0]["text"], "waited", "{answer}");
    echo(&mut there, "after it");
    eventually("it has ended", || one.child().try_wait().ok().flatten());
    echo(&mut there, "without it");
    echo(&mut at(&idle, &two), "idle, without it");
}

#[test]
fn tasks_are_followed_and_cancelled_at_any_replica() {
    let Some((redis, one, two)) = two() else { return };
    let run = |site: &Site, arguments: Value| {
        let call = json!({ "name": "gateway.background_run", "params": arguments });
        let reply = modern(&site.address, "tools/call", json!({ "name": "execute_tool", "arguments": call }));
        reply.result()
    };
    let launch = |tool: &str| {
        let task = json_of(&run(&one, json!({ "name": tool })));
        task["task_id"].as_str().unwrap_or_else(|| panic!("no task: {task}")).to_string()
    };
    let id = launch("shop.slow");
    assert_eq!(json_of(&run(&two, json!({ "task_id": id })))["state"], "running");
    let result = run(&two, json!({ "task_id": id, "wait": true }));
    assert_eq!(result["content"][0]["text"], "slept", "{result}");
    let id = launch("shop.endless");
    let began = Instant::now();
    let ended = json_of(&run(&two, json!({ "task_id": id, "cancel": true })));
    assert_eq!(ended["state"], "cancelled", "{ended}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // A replica that cannot look up a task does not say that there is none.
    drop(redis);
    let fault = json_of(&run(&two, json!({ "task_id": id })))["error"].take();
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("internal"), &json!(true)), "{fault}");
}

#[test]
fn what_a_stateless_client_is_asked_is_answered_at_any_replica() {
    let Some(redis) = RedisServer::start() else { return };
    let bank = |name: &str| {
        let script = json!({ "tools": [{ "name": "pay" }] });
        let policy = "[servers.bank.tools.pay]\npolicy = 'approve'\n";
        Setup::new().toml(&redis.toml(name)).server("bank", script).toml(policy).serve()
    };
    let (one, two) = (bank("one"), bank("two"));
    for site in [&one, &two] {
        WebClient::new(&site.address, "/mcp").until_ready("bank");
    }
    let ask = |site: &Site, tool: &str, arguments: Value| {
        let reply = modern(&site.address, "tools/call", json!({ "name": tool, "arguments": arguments }));
        json_of(&reply.result())
    };
    let call = json!({ "name": "bank.pay", "params": { "sum": 5 } });
    let fault = ask(&one, "execute_tool", call.clone());
    let mut answer = fault["error"]["next_step"]["arguments"].clone();
    answer["answer"] = json!("allow");
    let told = eventually("the replicas know each other", || {
        Some(ask(&two, "ask_user", answer.clone())).filter(|told| told.get("error").is_none())
    });
    assert_eq!(told, json!({ "sum": 5 }), "the call runs where it waits");
    for site in [&one, &two] {
        assert_eq!(ask(site, "execute_tool", call.clone())["error"]["code"], "needs_approval");
    }
}
