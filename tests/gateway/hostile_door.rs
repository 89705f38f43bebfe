//! HTTP clients that are slow, numerous or silent, or that use a foreign host name.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::{
    setup::{PATIENCE, Setup, eventually, json_of, text_of},
    web::{Site, WebClient, http, modern, own_header},
};

fn good(limits: &str) -> Setup {
    let tools = json!([{ "name": "text", "on": { "size": 90_000 } }, { "name": "echo" }]);
    Setup::new().server("good", json!({ "tools": tools })).toml(&format!("[limits]\n{limits}"))
}

fn connect(site: &Site) -> TcpStream {
    let stream = TcpStream::connect(&site.address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream
}

/// Reads until the gateway closes the connection.
fn read_all(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset connection has ended as well.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn whoever_sends_slowly_is_not_waited_for() {
    let site = good("request_timeout = '300ms'").serve();
    let silent = connect(&site);
    let mut slow = connect(&site);
    slow.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-").expect("it reads");
    let mut halved = connect(&site);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n{}\
         Content-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{{\"jsonrpc\"",
        own_header(&site.address)
    );
    halved.write_all(head.as_bytes()).expect("it reads");
    let mut idle = connect(&site);
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    assert!(read_all(idle).ends_with("ok\n"), "and it is closed after its answer");
    read_all(silent);
    read_all(slow);
    let refused = read_all(halved);
    assert!(
        refused.starts_with("HTTP/1.1 408") && refused.contains("did not arrive within 300ms"),
        "{refused}"
    );
    assert_eq!(modern(&site.address, "tools/list", json!({})).status, 200);
}

/// Sends a request with a valid token and keeps the connection. Returns the status of the answer, too.
fn proven(site: &Site) -> (TcpStream, String) {
    let mut stream = connect(site);
    let head = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n", own_header(&site.address));
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut status = [0; 12];
    stream.read_exact(&mut status).expect("it answers");
    (stream, String::from_utf8_lossy(&status).into_owned())
}

#[test]
fn connections_with_a_token_are_limited_and_come_back() {
    let site = good("connections = 6").serve();
    let held: Vec<_> = (0..4).map(|_| proven(&site)).collect();
    assert!(held.iter().all(|(_, status)| status == "HTTP/1.1 200"), "{held:?}");
    let mut fifth = connect(&site);
    let head = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n", own_header(&site.address));
    fifth.write_all(head.as_bytes()).expect("it reads");
    let refused = read_all(fifth);
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too many connections"), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    drop(held);
    eventually("there is room again", || (proven(&site).1 == "HTTP/1.1 200").then_some(()));
}

#[test]
fn connections_without_a_token_lock_out_nobody() {
    // Both ends of so many connections are more than one process may have open.
    let site = good("").serve_program();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("good");
    // Silent ones, and ones that were answered without a token.
    let mut idle: Vec<TcpStream> = (0..520).map(|_| connect(&site)).collect();
    for stream in idle.iter_mut().step_by(8) {
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    assert_eq!(client.status("ping"), 200);
    assert_eq!(WebClient::new(&site.address, "/mcp").status("ping"), 200);
    // The oldest has made room.
    read_all(idle.remove(0));
}

#[test]
fn a_connection_that_sends_nothing_is_closed_soon() {
    let site = good("request_timeout = '300ms'").serve();
    read_all(connect(&site));
    let mut client = WebClient::new(&site.address, "/mcp");
    assert_eq!(client.status("ping"), 200);
}

#[test]
fn behind_a_trusted_proxy_each_client_has_its_own_limit() {
    let site = good("connections = 12").gateway("trusted_proxies = ['127.0.0.0/8']").serve();
    let begin = |client: &str, length: usize| {
        let mut stream = connect(&site);
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nForwarded: for={client}\r\n{}Accept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{{}}",
            own_header(&site.address)
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream
    };
    // Connections are judged in no certain order: the short request may take the place of one that is to be
    // held.
    let mut held = Vec::new();
    eventually("one too many is refused", || {
        held.push(begin("192.0.2.1", 100));
        read_all(begin("192.0.2.1", 2)).starts_with("HTTP/1.1 503").then_some(())
    });
    // The end of a short request may be noticed late.
    assert!(held.len() >= 3, "refused after {}", held.len());
    for _ in 0..8 {
        let other = read_all(begin("192.0.2.2", 2));
        assert!(other.starts_with("HTTP/1.1 4"), "it is judged, not refused: {other}");
    }
    drop(held);
    eventually("there is room again", || {
        (!read_all(begin("192.0.2.1", 2)).starts_with("HTTP/1.1 503")).then_some(())
    });
}

#[test]
fn a_new_session_lives_however_many_were_left_open() {
    let tools = json!([{ "name": "echo" }]);
    let site = Setup::new().server("good", json!({ "tools": tools })).toml("[quotas]\nsessions = 3").serve();
    let open = || WebClient::new(&site.address, "/mcp");
    let mut used = open();
    used.until_ready("good");
    let mut left: Vec<WebClient> = (0..20).map(|_| open()).collect();
    assert_eq!(used.status("ping"), 200, "a session in use stays");
    let mut new = open();
    assert_eq!(json_of(&new.call("good__echo", json!({ "a": 1 }))), json!({ "a": 1 }));
    assert_eq!(left[0].status("ping"), 404, "the oldest unused one has made room");
    let last = left.last_mut().expect("some are left");
    assert_eq!(last.status("ping"), 200, "the newest has not");
    // All three are in use now.
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } });
    let initialize =
        json!({ "jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params }).to_string();
    let knock = || http(&site.address, "POST", "/mcp", &[], &initialize);
    let full = knock();
    assert_eq!((full.status, full.answer()["id"].clone()), (503, json!(7)), "{full:?}");
    assert!(full.headers["retry-after"].parse::<u64>().is_ok_and(|seconds| seconds > 0), "{full:?}");
    let session = [("mcp-session-id", used.session.as_str())];
    assert_eq!(http(&site.address, "DELETE", "/mcp", &session, "").status, 204);
    eventually("there is room again", || (knock().status == 200).then_some(()));
}

#[test]
fn every_route_wants_a_host_of_its_own() {
    let site = good("").serve();
    let with = |path: &str, host: &str| http(&site.address, "GET", path, &[("host", host)], "").status;
    for path in ["/metrics", "/readyz", "/healthz", "/ui"] {
        assert_eq!(with(path, "evil.example.com"), 403, "{path}");
        assert_eq!(with(path, "localhost.example.com:8931"), 403, "{path}");
        assert_ne!(with(path, "localhost"), 403, "{path}");
        assert_ne!(with(path, &site.address), 403, "{path}");
    }
    let twice =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n";
    let mut stream = connect(&site);
    stream.write_all(twice.as_bytes()).expect("it reads");
    assert!(!read_all(stream).starts_with("HTTP/1.1 200"));
}

#[test]
fn an_id_beyond_64_bits_is_answered() {
    let site = good("").serve();
    let client = WebClient::new(&site.address, "/mcp");
    let session = [("mcp-session-id", client.session.as_str())];
    let body = r#"{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"ping"}"#;
    let reply = http(&site.address, "POST", "/mcp", &session, body);
    assert!(
        reply.status == 400 && reply.body.contains("\"id\":123456789012345678901234567890,"),
        "{reply:?}"
    );
}

#[test]
fn large_arguments_over_http_arrive_whole_and_a_large_ping_does_not() {
    let site = good("").serve();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("good");
    let many: Vec<usize> = (0..150_000).collect();
    let params = json!({ "many": many, "name": "x", "text": "y".repeat(5_000) });
    let echoed = client.call("execute_tool", json!({ "name": "good.echo", "params": params }));
    let shown = text_of(&echoed);
    assert!(echoed["isError"] != true && shown.contains("\"count\":150000"), "{shown:.300}");
    let call =
        json!({ "name": "execute_tool", "arguments": { "name": "good.echo", "params": { "many": many } } });
    let result = modern(&site.address, "tools/call", call).result();
    assert!(text_of(&result).contains("\"count\":150000"), "{result:.300}");
    let reply = client.request("ping", json!({ "a": vec![json!({ "": 0 }); 500_000] }));
    assert!(reply.status == 400 && reply.body.contains("more than 20971 values"), "{reply:.300?}");
}

/// Unread streams fill no memory and delay nobody else.
#[test]
fn streams_that_nobody_reads_cost_little() {
    let site = good("connections = 420").serve_program();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("good");
    let mut unread = Vec::new();
    for id in 0..250 {
        let params = json!({ "name": "execute_tool", "arguments": { "name": "good.text" } });
        let body = json!({ "jsonrpc": "2.0", "id": 1_000 + id, "method": "tools/call", "params": params })
            .to_string();
        let mut stream = connect(&site);
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\nMcp-Session-Id: {}\r\n{}Content-Length: {}\r\n\r\n{body}",
            client.session,
            own_header(&site.address),
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        unread.push(stream);
    }
    let mut other = WebClient::new(&site.address, "/mcp");
    for n in 0..20 {
        let echoed: Value =
            other.answer("execute_tool", json!({ "name": "good.echo", "params": { "n": n } }));
        assert_eq!(echoed, json!({ "n": n }));
    }
    #[cfg(target_os = "linux")]
    {
        let most = crate::setup::memory(site.pid(), "VmHWM");
        println!("unread streams: at most {} MB", most / 1_000_000);
        assert!(most < 400_000_000, "the gateway took {} MB", most / 1_000_000);
    }
}

/// For manual runs, with figures: what opened and closed sessions leave behind.
#[test]
#[ignore = "takes minutes, and prints a figure"]
#[cfg(target_os = "linux")]
fn sessions_leave_little_behind() {
    let site = good("").serve_program();
    let cycle = || {
        let mut client = WebClient::new(&site.address, "/mcp");
        client.request("tools/list", json!({}));
        let session = [("mcp-session-id", client.session.as_str())];
        assert_eq!(http(&site.address, "DELETE", "/mcp", &session, "").status, 204);
    };
    (0..200).for_each(|_| cycle());
    let rss = || crate::setup::memory(site.pid(), "VmRSS") / 1_000;
    println!("after 200 sessions: {} kB", rss());
    for count in 1..=8 {
        (0..1_000).for_each(|_| cycle());
        println!("after {count},000 more: {} kB", rss());
    }
}
