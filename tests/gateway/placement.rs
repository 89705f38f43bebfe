//! Programs that one replica of a cluster runs for all.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use nonet_testing::RedisServer;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    setup::{PATIENCE, Setup, eventually, json_of},
    web::{Site, WebClient, http, own_header},
};

/// Starts a gateway with one placed program. `starts` is a folder for the program's records.
fn replica(redis: &RedisServer, starts: &Path, name: &str, placement: &str, labels: &str) -> Site {
    let script = json!({
        "call_log": starts.join("calls"),
        "instructions": "Sells things.",
        "resources": [{ "uri": "note://a", "text": "a" }],
        "templates": [{ "uriTemplate": "note://{name}", "name": "notes" }],
        "prompts": [{ "name": "greet", "text": "Hello {{who}}", "arguments": [{ "name": "who", "required": true }] }],
        "tools": [
            { "name": "count", "vendor": { "x": [1, 2] }, "on": { "counter": true } },
            { "name": "echo" },
            { "name": "rows", "on": { "json_rows": 20_000, "structured": false } },
            { "name": "work", "on": { "progress": 5, "progress_every_ms": 60, "text": "worked" } },
            { "name": "wait", "on": { "delay_ms": 2_000, "text": "waited" } },
            { "name": "slow", "on": { "delay_ms": 60_000 } },
            { "name": "fail", "on": { "error": "no" } },
            { "name": "refuse", "on": { "rpc_error": { "code": -32050, "message": "never", "data": { "a": 1 } } } },
            { "name": "ask", "on": { "elicit": { "message": "Which?", "requestedSchema": {
                "type": "object", "properties": { "city": { "type": "string" } } } } } },
            { "name": "touch", "on": { "touch": "note://a", "text": "done" } },
            { "name": "grow", "on": { "grow": "grown", "text": "done" } },
        ],
    });
    let keys = format!("placement = \"{placement}\"");
    let cluster = format!("{}labels = [{labels}]\n", redis.toml(name));
    Setup::new().toml(&cluster).server_with("shop", script, &keys).serve_program()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn status(client: &mut WebClient) -> Value {
    client.answer("execute_tool", json!({ "name": "gateway.status" }))
}

fn runs_at(site: &Site) -> String {
    let mut client = WebClient::new(&site.address, "/mcp");
    status(&mut client)["servers"][0]["runs_at"].as_str().unwrap_or_default().into()
}

/// Returns the id of the program's process that answers at a replica.
fn pid(site: &Site) -> i64 {
    WebClient::new(&site.address, "/mcp").answer("shop__count", json!({}))["pid"].as_i64().expect("a number")
}

fn ready(sites: &[&Site]) {
    for site in sites {
        WebClient::new(&site.address, "/mcp").until_ready("shop");
    }
}

fn ends(mut site: Site, signal: Signal) -> Site {
    kill(Pid::from_raw(site.pid() as i32), signal).expect("it runs");
    if signal == Signal::SIGKILL {
        site.child().wait().expect("it ended");
    }
    site
}

/// Returns everything that a replica lists of the program.
fn lists(site: &Site) -> Value {
    let mut client = WebClient::new(&site.address, "/mcp");
    let mut all = json!({});
    for (method, field) in [
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        all[field] = client.request(method, json!({})).result()[field].take();
    }
    let category = client.answer("browse_category", json!({ "category": "shop", "page_size": 50 }));
    all["tools"] = category;
    // The figures of its calls come beside its definition.
    let tool = client.answer("get_tool", json!({ "name": "shop.count" }));
    all["count"] = json!([tool["input_schema"], tool["version"], tool["risk"]]);
    all
}

#[test]
fn one_instance_serves_all_replicas_and_another_replica_takes_over() {
    let Some(redis) = RedisServer::start() else { return };
    let starts = folder();
    let one = replica(&redis, starts.path(), "one", "one", "");
    let two = replica(&redis, starts.path(), "two", "one", "");
    ready(&[&one, &two]);
    let first = pid(&one);
    assert_eq!(pid(&two), first, "there is one instance");
    assert_eq!((&*runs_at(&one), &*runs_at(&two)), ("one", "one"));
    assert_eq!(lists(&one), lists(&two));

    // The holder is killed: the next call at the other replica waits for the new instance.
    let one = ends(one, Signal::SIGKILL);
    let began = Instant::now();
    let second = pid(&two);
    println!("taken over after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    assert_ne!(second, first);
    assert_eq!(runs_at(&two), "two");

    // A later replica reaches the program there.
    let three = replica(&redis, starts.path(), "three", "one", "");
    ready(&[&three]);
    assert_eq!(pid(&three), second);
    assert_eq!(lists(&three), lists(&two));
    drop(one);
}

#[test]
fn everything_of_a_program_comes_through_another_replica() {
    let Some(redis) = RedisServer::start() else { return };
    let starts = folder();
    let one = replica(&redis, starts.path(), "one", "one", "");
    let two = replica(&redis, starts.path(), "two", "one", "");
    ready(&[&one, &two]);
    let mut here = WebClient::new(&one.address, "/mcp");
    let mut there = WebClient::new(&two.address, "/mcp");
    let params = json!({ "text": "früh\r\ndata: x\n\n", "big": 12345678901234567890u64 });
    assert_eq!(there.answer("shop__echo", params.clone()), params);
    for tool in ["shop__fail", "shop__refuse", "shop__rows"] {
        let mut answers = [here.call(tool, json!({})), there.call(tool, json!({}))].map(|answer| {
            // Each kept result has its own reference.
            let text = answer.to_string();
            text.split("r-").next().unwrap_or_default().to_owned()
        });
        answers.sort();
        assert_eq!(answers[0], answers[1], "{tool}");
    }
    let prompt = json!({ "name": "shop__greet", "arguments": { "who": "you" } });
    let got = there.request("prompts/get", prompt).result();
    assert_eq!(got["messages"][0]["content"]["text"], "Hello you", "{got}");
    let read = there.request("resources/read", json!({ "uri": "note://a" })).result();
    assert_eq!(read["contents"][0]["text"], "a", "{read}");

    // Progress arrives in order, under the client's own token.
    let call = json!({ "name": "shop__work", "arguments": {}, "_meta": { "progressToken": "mine" } });
    let messages = there.request("tools/call", call).messages();
    let told: Vec<_> = messages
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .map(|message| (message["params"]["progressToken"].clone(), message["params"]["progress"].as_f64()))
        .collect();
    assert_eq!(told.len(), 5, "{messages:?}");
    assert!(
        told.iter().all(|(token, _)| token == "mine") && told.is_sorted_by_key(|(_, at)| *at),
        "{told:?}"
    );

    // A question reaches the client of the call, and its answer reaches the program.
    assert_eq!(asked(&two, "shop__ask"), json!({ "action": "accept", "content": { "city": "Rome" } }));

    // If the client abandons a call, so does the program's replica.
    let mut waiting = WebClient::new(&two.address, "/mcp");
    let other = WebClient::resumed(&two.address, "/mcp", &waiting.session, "");
    let waiting = std::thread::spawn(move || {
        waiting.request("tools/call", json!({ "name": "shop__slow", "arguments": {} }))
    });
    let logged = || fs::read_to_string(starts.path().join("calls")).unwrap_or_default();
    eventually("the program has the call", || logged().contains("\"slow\"").then_some(()));
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    assert_eq!(other.post(&cancel).status, 202);
    eventually("the program knows of it", || logged().contains("cancelled").then_some(()));
    let _ = waiting.join();

    // A list change at one replica is visible at the other.
    there.call("shop__grow", json!({}));
    eventually("the new tool is at both", || {
        let tools =
            |client: &mut WebClient| client.answer("shop__grown", json!({ "a": 1 })) == json!({ "a": 1 });
        (tools(&mut here) && tools(&mut there)).then_some(())
    });
}

/// Calls a tool that asks a question and answers it. Returns the JSON of the call's answer.
fn asked(site: &Site, tool: &str) -> Value {
    let post = |session: &str, message: Value| {
        let mut stream = TcpStream::connect(&site.address).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let body = message.to_string();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nhost: {}\r\naccept: application/json, text/event-stream\r\ncontent-type: application/json\r\n\
             {session}content-length: {}\r\nconnection: close\r\n{}\r\n{body}",
            site.address,
            body.len(),
            own_header(&site.address)
        )
        .expect("sent");
        BufReader::new(stream).lines().map_while(Result::ok)
    };
    let params = json!({
        "protocolVersion": "2025-06-18",
        "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "test", "version": "1" },
    });
    let mut greeted =
        post("", json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }));
    let session = greeted
        .find_map(|line| line.to_lowercase().strip_prefix("mcp-session-id: ").map(String::from))
        .expect("a session");
    let session = format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-06-18\r\n");
    post(&session, json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).for_each(drop);
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": {} },
    });
    for line in post(&session, call) {
        let Some(data) = line.strip_prefix("data:") else { continue };
        let message: Value = serde_json::from_str(data.trim()).unwrap_or_default();
        if message["method"] == "elicitation/create" {
            assert_eq!(message["params"]["message"], "`shop` asks: Which?", "{message}");
            let result = json!({ "action": "accept", "content": { "city": "Rome" } });
            post(&session, json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })).for_each(drop);
        } else if message["id"] == 1 {
            return json_of(&message["result"]);
        }
    }
    panic!("the call has no answer");
}

#[test]
fn only_replicas_reach_a_program_by_its_own_address() {
    let Some(redis) = RedisServer::start() else { return };
    let starts = folder();
    let one = replica(&redis, starts.path(), "one", "one", "");
    ready(&[&one]);
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
    for mark in ["", "0123456789abcdef01234567"] {
        for path in ["/cluster/servers/shop", "/cluster/servers/none"] {
            let reply = http(&one.address, "POST", path, &[("x-nonet-replica", mark)], &body);
            assert_eq!((reply.status, &*reply.body), (404, ""), "{path} {mark}");
        }
    }
}

#[test]
fn a_label_says_which_replica_runs_a_program() {
    let Some(redis) = RedisServer::start() else { return };
    let starts = folder();
    let one = replica(&redis, starts.path(), "one", "label:gpu", "\"disk\"");
    let mut client = WebClient::new(&one.address, "/mcp");
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(status(&mut client)["servers"][0]["state"], "starting", "no replica has the label");
    let two = replica(&redis, starts.path(), "two", "label:gpu", "\"disk\", \"gpu\"");
    let three = replica(&redis, starts.path(), "three", "label:gpu", "\"gpu\"");
    ready(&[&one, &two, &three]);
    let first = pid(&one);
    assert_eq!((pid(&two), pid(&three)), (first, first));
    let (holder, other) = match &*runs_at(&one) {
        "two" => (two, three),
        "three" => (three, two),
        other => panic!("it runs at `{other}`"),
    };
    let holder = ends(holder, Signal::SIGKILL);
    let next = pid(&one);
    assert_ne!(next, first);
    assert_eq!((pid(&other), runs_at(&one)), (next, runs_at(&other)));
    drop(holder);
}

#[test]
fn a_replica_that_stops_hands_its_program_over_without_losing_a_call() {
    let Some(redis) = RedisServer::start() else { return };
    let starts = folder();
    let one = replica(&redis, starts.path(), "one", "one", "");
    let two = replica(&redis, starts.path(), "two", "one", "");
    ready(&[&one, &two]);
    eventually("each knows the other", || {
        let replicas = status(&mut WebClient::new(&one.address, "/mcp"));
        let known = replicas["cluster"]["replicas"].as_array()?.len() == 2;
        std::thread::sleep(Duration::from_millis(100));
        known.then_some(())
    });
    let first = pid(&two);
    let calls = |tool: &'static str, count: usize| {
        let address = two.address.clone();
        std::thread::spawn(move || {
            let mut client = WebClient::new(&address, "/mcp");
            (0..count).map(|_| client.call(tool, json!({}))).collect::<Vec<_>>()
        })
    };
    let (long, short) = (calls("shop__wait", 2), calls("shop__count", 400));
    std::thread::sleep(Duration::from_millis(300));
    let mut one = ends(one, Signal::SIGTERM);
    for answer in long.join().expect("answers") {
        assert_eq!(answer["content"][0]["text"], "waited", "{answer}");
    }
    let answers = short.join().expect("answers");
    let pids: Vec<i64> = answers.iter().map(|answer| json_of(answer)["pid"].as_i64().unwrap_or(0)).collect();
    assert!(pids.iter().all(|pid| *pid != 0), "{answers:?}");
    eventually("it has ended", || one.child().try_wait().ok().flatten());
    assert_ne!(pid(&two), first);
    assert_eq!(runs_at(&two), "two");
}

#[test]
fn a_program_stays_where_it_is_while_redis_is_away() {
    let Some(mut redis) = RedisServer::start() else { return };
    let starts = folder();
    let one = replica(&redis, starts.path(), "one", "one", "");
    let two = replica(&redis, starts.path(), "two", "one", "");
    ready(&[&one, &two]);
    let first = pid(&two);
    std::thread::scope(|scope| {
        let away = scope.spawn(|| redis.restart(Duration::from_secs(13)));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(25) {
            assert_eq!((pid(&one), pid(&two)), (first, first), "{:?}", began.elapsed());
            std::thread::sleep(Duration::from_millis(300));
        }
        away.join().expect("it is back");
    });
    assert_eq!((&*runs_at(&one), &*runs_at(&two)), ("one", "one"));
}
