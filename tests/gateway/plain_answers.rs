//! Calls over HTTP: plain JSON for an answer without earlier messages, an event stream for the others.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::{
    setup::{PATIENCE, Setup, eventually, json_of, logged},
    web::{Reply, Site, WebClient, http, modern, own_header},
};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// Returns a site whose server logs its calls in the file `calls`.
fn site() -> Site {
    let setup = Setup::new();
    let tools = json!([
        { "name": "echo" },
        { "name": "work", "on": { "progress": 3 } },
        { "name": "wait", "on": { "delay_ms": 300, "text": "waited" } },
        { "name": "hang", "on": { "hang": true } },
    ]);
    let log = setup.path("calls");
    setup.server("shop", json!({ "tools": tools, "call_log": log })).serve()
}

fn ready(site: &Site) -> WebClient {
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    client
}

fn kind(reply: &Reply) -> &str {
    reply.headers.get("content-type").map_or("", String::as_str)
}

fn calls(site: &Site) -> Vec<Value> {
    logged(&site.folder.path().join("calls"))
}

/// Sends a request and returns its connection, without reading the answer.
fn begin(address: &str, session: &str, message: &Value) -> TcpStream {
    let (body, own) = (message.to_string(), own_header(address));
    let mut stream = TcpStream::connect(address).expect("nonet listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAccept: {JSON}, {EVENTS}\r\nContent-Type: {JSON}\r\nConnection: close\r\n{own}\
         Mcp-Session-Id: {session}\r\nMcp-Protocol-Version: 2025-06-18\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("nonet reads");
    stream
}

fn call(id: i64, tool: &str, arguments: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": tool, "arguments": arguments } })
}

#[test]
fn a_quick_call_is_answered_with_json_in_both_eras() {
    let site = site();
    let mut client = ready(&site);
    let params = json!({ "name": "shop__echo", "arguments": { "a": 1 } });
    eventually("a call is quick", || {
        let reply = client.request("tools/call", params.clone());
        assert_eq!(json_of(&reply.result()), json!({ "a": 1 }));
        assert_eq!(reply.answer()["id"].as_i64().map(|id| id > 0), Some(true), "{reply:?}");
        (kind(&reply) == JSON).then_some(())
    });
    eventually("a call is quick", || {
        let reply = modern(&site.address, "tools/call", params.clone());
        let answer = reply.answer();
        assert_eq!((&answer["id"], &answer["result"]["resultType"]), (&json!(1), &json!("complete")));
        assert_eq!(json_of(&answer["result"]), json!({ "a": 1 }));
        (kind(&reply) == JSON).then_some(())
    });
}

#[test]
fn a_call_that_has_something_to_say_or_takes_longer_streams() {
    let site = site();
    let mut client = ready(&site);
    let work = json!({ "name": "shop__work", "arguments": {}, "_meta": { "progressToken": "t" } });
    let reply = client.request("tools/call", work);
    assert_eq!(kind(&reply), EVENTS, "{reply:?}");
    let steps: Vec<Value> =
        reply.messages().into_iter().map(|message| message["params"]["progress"].clone()).collect();
    assert_eq!(json!(steps), json!([1, 2, 3, null]), "{reply:?}");
    let reply = client.request("tools/call", json!({ "name": "shop__wait", "arguments": {} }));
    assert_eq!(kind(&reply), EVENTS, "{reply:?}");
    assert_eq!(reply.result()["content"][0]["text"], "waited");
    let reply = modern(&site.address, "tools/call", json!({ "name": "shop__wait", "arguments": {} }));
    assert_eq!(kind(&reply), EVENTS, "{reply:?}");
    assert_eq!(reply.result()["content"][0]["text"], "waited");
    let sent = calls(&site).iter().filter(|line| line["params"]["name"] == "wait").count();
    assert_eq!(sent, 2, "no work is done twice");
}

#[test]
fn a_question_goes_out_on_the_stream_of_its_call() {
    let site = site();
    let params = json!({
        "protocolVersion": "2025-06-18",
        "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "test", "version": "1" },
    });
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let reply = http(&site.address, "POST", "/mcp", &[], &hello.to_string());
    let client = WebClient::resumed(&site.address, "/mcp", &reply.headers["mcp-session-id"], "");
    client.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    eventually("a call is quick", || {
        (kind(&client.post(&call(1, "list_categories", json!({})))) == JSON).then_some(())
    });
    let stream = begin(&site.address, &client.session, &call(2, "ask_user", json!({ "question": "Which?" })));
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut next = || {
        lines.by_ref().find_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?.trim()).ok())
    };
    let asked = next().expect("a question");
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    let answer = json!({ "action": "accept", "content": { "answer": "this" } });
    client.post(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer }));
    let told = next().expect("an answer");
    assert_eq!((&told["id"], &json_of(&told["result"])["answer"]), (&json!(2), &json!("this")), "{told}");
}

#[test]
fn a_call_can_be_cancelled_in_its_first_moments() {
    let site = site();
    let client = ready(&site);
    let mut stream = begin(&site.address, &client.session, &call(77, "shop__hang", json!({})));
    // Without a pause: after 50 ms, the call has a stream.
    let began = std::time::Instant::now();
    while !calls(&site).iter().any(|line| line["params"]["name"] == "hang") {
        assert!(began.elapsed() < PATIENCE, "the call has not arrived");
    }
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 77 } });
    assert_eq!(client.post(&cancel).status, 202);
    eventually("the server is told", || {
        calls(&site).iter().any(|line| line.get("cancelled").is_some()).then_some(())
    });
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the answer ends");
    assert!(text.starts_with("HTTP/1.1 200") && !text.contains("\"result\""), "{text}");
}

#[test]
fn a_call_whose_client_leaves_goes_on() {
    let site = site();
    let mut client = ready(&site);
    let stream = begin(&site.address, &client.session, &call(5, "shop__wait", json!({})));
    eventually("the call has arrived", || {
        calls(&site).iter().any(|line| line["params"]["name"] == "wait").then_some(())
    });
    drop(stream);
    let tool = eventually("the call has ended", || {
        let tool = client.answer("get_tool", json!({ "name": "shop.wait" }));
        (tool["calls"] == 1).then_some(tool)
    });
    assert_eq!(tool["failures"], 0, "{tool}");
    assert!(calls(&site).iter().all(|line| line.get("cancelled").is_none()), "{:?}", calls(&site));
}

#[test]
fn a_session_that_is_gone_or_of_another_profile_is_refused() {
    let site = Setup::new()
        .server("shop", json!({ "tools": [{ "name": "echo" }] }))
        .toml("[profiles.reader]\ncategories = ['shop']")
        .serve();
    let mut client = ready(&site);
    let mut other = WebClient::new(&site.address, "/mcp/reader");
    other.until_ready("shop");
    let path = std::mem::replace(&mut other.path, "/mcp".into());
    assert_eq!(other.post(&call(9, "shop__echo", json!({}))).status, 404);
    other.path = path;
    assert_eq!(other.post(&call(9, "shop__echo", json!({}))).status, 200);
    assert_eq!(client.request("tools/call", json!({ "name": "list_categories" })).status, 200);
    let headers = [("mcp-session-id", client.session.as_str())];
    assert_eq!(http(&site.address, "DELETE", "/mcp", &headers, "").status, 204);
    let after = client.request("tools/call", json!({ "name": "list_categories" }));
    assert_eq!(after.status, 404, "{after:?}");
    let page = [("origin", "https://evil.example"), ("mcp-session-id", other.session.as_str())];
    let stranger = call(3, "list_categories", json!({})).to_string();
    assert_eq!(http(&site.address, "POST", "/mcp/reader", &page, &stranger).status, 403);
}
