//! Traces: what a collector and the servers receive, and the consequences of a missing collector.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of},
};

/// A client's trace: the trace id, and the id of the client's span.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// The parts of OTLP that the tests read.
mod otlp {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Request {
        #[prost(message, repeated, tag = "1")]
        pub resources: Vec<OfResource>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct OfResource {
        #[prost(message, optional, tag = "1")]
        pub resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub scopes: Vec<OfScope>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct OfScope {
        #[prost(message, repeated, tag = "2")]
        pub spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub trace: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub parent: Vec<u8>,
        #[prost(string, tag = "5")]
        pub name: String,
        #[prost(int32, tag = "6")]
        pub kind: i32,
        #[prost(message, repeated, tag = "9")]
        pub attributes: Vec<Attribute>,
        #[prost(bytes = "vec", repeated, tag = "11")]
        pub events: Vec<Vec<u8>>,
        #[prost(message, optional, tag = "15")]
        pub status: Option<Status>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LogRequest {
        #[prost(message, repeated, tag = "1")]
        pub resources: Vec<LogsOfResource>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LogsOfResource {
        #[prost(message, optional, tag = "1")]
        pub resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub scopes: Vec<LogsOfScope>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LogsOfScope {
        #[prost(message, repeated, tag = "2")]
        pub records: Vec<LogRecord>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct LogRecord {
        #[prost(fixed64, tag = "1")]
        pub time: u64,
        #[prost(message, optional, tag = "5")]
        pub body: Option<AnyValue>,
        #[prost(message, repeated, tag = "6")]
        pub attributes: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Status {
        #[prost(string, tag = "2")]
        pub message: String,
        #[prost(int32, tag = "3")]
        pub code: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Attribute {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(message, optional, tag = "2")]
        pub value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct AnyValue {
        #[prost(oneof = "Kind", tags = "1, 3")]
        pub kind: Option<Kind>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        #[prost(string, tag = "1")]
        Text(String),
        #[prost(int64, tag = "3")]
        Number(i64),
    }
}

const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const CLIENT: i32 = 3;
const ERROR: i32 = 2;

/// A span as a collector receives it.
#[derive(Clone, Debug)]
struct Span {
    service: Value,
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: i32,
    failed: bool,
    attributes: BTreeMap<String, Value>,
}

fn attributes(all: Vec<otlp::Attribute>) -> BTreeMap<String, Value> {
    let value = |value: Option<otlp::AnyValue>| match value.and_then(|value| value.kind) {
        Some(otlp::Kind::Text(text)) => json!(text),
        Some(otlp::Kind::Number(number)) => json!(number),
        None => Value::Null,
    };
    all.into_iter().map(|attribute| (attribute.key, value(attribute.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An audit line, and its attributes.
type Audited = (Value, BTreeMap<String, Value>);

/// A collector that stores what it receives.
#[derive(Clone, Default)]
struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<Span>>>,
    audited: Arc<Mutex<Vec<Audited>>>,
    headers: Arc<Mutex<Vec<HeaderMap>>>,
    /// All received bytes.
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let collector = Self { endpoint: format!("http://{address}"), ..Self::default() };
        let taker = collector.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                listener.set_nonblocking(true).expect("it can be polled");
                let listener = tokio::net::TcpListener::from_std(listener).expect("it can be polled");
                let logs = taker.clone();
                let take = async move |headers: HeaderMap, body: Bytes| taker.take(headers, &body);
                let take_logs = async move |body: Bytes| logs.take_logs(&body);
                let routes = Router::new().route("/v1/traces", post(take)).route("/v1/logs", post(take_logs));
                axum::serve(listener, routes).await
            })
        });
        collector
    }

    fn take(&self, headers: HeaderMap, body: &[u8]) {
        let request = otlp::Request::decode(body).expect("OTLP");
        self.headers.lock().unwrap().push(headers);
        self.bytes.lock().unwrap().extend_from_slice(body);
        for of_resource in request.resources {
            let of_service = attributes(of_resource.resource.unwrap_or_default().attributes);
            for span in of_resource.scopes.into_iter().flat_map(|scope| scope.spans) {
                assert!(span.events.is_empty(), "{span:?}");
                let status = span.status.unwrap_or_default();
                assert_eq!(status.message, "");
                self.spans.lock().unwrap().push(Span {
                    service: of_service["service.name"].clone(),
                    trace: hex(&span.trace),
                    id: hex(&span.id),
                    parent: hex(&span.parent),
                    name: span.name,
                    kind: span.kind,
                    failed: status.code == ERROR,
                    attributes: attributes(span.attributes),
                });
            }
        }
    }

    fn take_logs(&self, body: &[u8]) {
        let request = otlp::LogRequest::decode(body).expect("OTLP");
        for of_resource in request.resources {
            let of_service = attributes(of_resource.resource.unwrap_or_default().attributes);
            assert_eq!(of_service["service.name"], "nonet");
            for record in of_resource.scopes.into_iter().flat_map(|scope| scope.records) {
                assert!(record.time > 0, "{record:?}");
                let body = match record.body.and_then(|body| body.kind) {
                    Some(otlp::Kind::Text(line)) => serde_json::from_str(&line).expect("a line"),
                    other => panic!("no line: {other:?}"),
                };
                self.audited.lock().unwrap().push((body, attributes(record.attributes)));
            }
        }
    }

    /// Returns the environment of a gateway that exports its traces here promptly.
    fn variables(&self) -> [(&str, &str); 3] {
        [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &self.endpoint),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc"),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ]
    }

    /// Returns the spans of this name, once there are `count`.
    fn spans(&self, name: &str, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans `{name}`"), || {
            let all = self.spans.lock().unwrap();
            let spans: Vec<Span> = all.iter().filter(|span| span.name == name).cloned().collect();
            (spans.len() == count).then_some(spans)
        })
    }

    fn span(&self, name: &str) -> Span {
        self.spans(name, 1).remove(0)
    }
}

/// Returns a server with tools that answer, fail, echo their request, and never answer.
fn shop() -> Setup {
    let tools = json!([
        { "name": "look", "on": { "request": true } },
        { "name": "say" },
        { "name": "fail", "on": { "error": "the secret of the server" } },
        { "name": "hang", "on": { "hang": true } },
    ]);
    Setup::new().server("shop", json!({ "tools": tools }))
}

fn start(setup: Setup, variables: &[(&str, &str)]) -> Client {
    let mut client = setup.run_with(&[], variables);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    client
}

/// Makes a call within the client's trace; returns its result.
fn traced(client: &mut Client, tool: &str, arguments: Value, more: &[(&str, &str)]) -> Value {
    let mut meta = json!({ "traceparent": format!("00-{TRACE}-{PARENT}-01") });
    for (key, value) in more {
        meta[*key] = json!(value);
    }
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    client.request("tools/call", params)["result"].take()
}

#[test]
fn a_call_and_its_request_are_spans_of_the_clients_trace() {
    let collector = Collector::start();
    let mut client = start(shop(), &collector.variables());
    let more = [("tracestate", "rojo=00f067aa0ba902b7"), ("baggage", "user=7")];
    let seen = json_of(&traced(&mut client, "shop__look", json!({ "card": "4111-1111" }), &more));

    let call = collector.span("tools/call shop.look");
    assert_eq!((call.trace.as_str(), call.parent.as_str(), call.kind), (TRACE, PARENT, SERVER), "{call:?}");
    assert_eq!((&call.service, call.failed), (&json!("nonet"), false));
    let said = |key: &str| call.attributes[key].clone();
    assert_eq!(said("mcp.method.name"), "tools/call");
    assert_eq!(said("gen_ai.operation.name"), "execute_tool");
    assert_eq!(said("gen_ai.tool.name"), "shop.look");
    assert_eq!(said("nonet.server"), "shop");
    assert_eq!(said("nonet.client"), "test");
    assert_eq!(said("nonet.outcome"), "ok");
    assert_eq!(said("nonet.bytes_in"), json!(r#"{"card":"4111-1111"}"#.len()));
    assert!(said("nonet.bytes_out").as_i64() > Some(0));
    assert!(said("mcp.session.id").is_string());
    assert!(!call.attributes.contains_key("error.type"));

    let request = collector.span("tools/call look");
    assert_eq!(
        (&request.trace, &request.parent, request.kind),
        (&call.trace, &call.id, CLIENT),
        "{request:?}"
    );
    assert_eq!(request.attributes["gen_ai.tool.name"], "look");
    assert_eq!(request.attributes["nonet.server"], "shop");
    assert_eq!(request.attributes["nonet.outcome"], "ok");

    // The server's span is a child of the request's, and gets the client's other fields.
    let meta = &seen["params"]["_meta"];
    assert_eq!(meta["traceparent"], format!("00-{TRACE}-{}-01", request.id), "{seen}");
    assert_eq!(meta["tracestate"], "rojo=00f067aa0ba902b7");
    assert_eq!(meta["baggage"], "user=7");

    let headers = collector.headers.lock().unwrap()[0].clone();
    assert_eq!(headers["authorization"], "Bearer abc");
    // The log is unchanged: one line per call, and nothing about spans.
    let log = client.stderr();
    assert!(log.contains("nonet::call: call client=test"), "{log}");
    assert!(!log.contains("tools/call") && !log.contains("gen_ai"), "{log}");
}

#[test]
fn faults_are_told_by_their_codes_and_nothing_that_was_said_leaves() {
    let collector = Collector::start();
    let mut client = start(shop(), &collector.variables());
    traced(&mut client, "shop__fail", json!({ "password": "hunter2" }), &[]);
    for name in ["tools/call shop.fail", "tools/call fail"] {
        let failed = collector.span(name);
        assert_eq!(failed.attributes["error.type"], failed.attributes["nonet.outcome"], "{failed:?}");
        assert!(failed.failed && failed.attributes["error.type"].is_string(), "{failed:?}");
    }
    client.fault("shop.nothing", json!({ "password": "hunter2" }));
    let refused = collector.span("tools/call");
    assert_eq!(refused.attributes["error.type"], "unknown_tool");
    assert_eq!(refused.attributes["gen_ai.tool.name"], "shop.nothing");
    assert!(refused.failed && refused.parent.is_empty(), "{refused:?}");

    let timeout = json!({ "name": "shop.hang", "timeout_ms": 100 });
    traced(&mut client, "execute_tool", timeout, &[]);
    assert_eq!(collector.span("tools/call hang").attributes["error.type"], "timeout");
    assert_eq!(collector.span("tools/call shop.hang").attributes["error.type"], "timeout");

    let bytes = collector.bytes.lock().unwrap().clone();
    let bytes = String::from_utf8_lossy(&bytes);
    assert!(!bytes.contains("hunter2") && !bytes.contains("secret"), "{bytes}");
}

#[test]
fn a_search_is_a_span_and_what_runs_together_hangs_together() {
    let collector = Collector::start();
    let mut client = start(shop(), &collector.variables());
    traced(&mut client, "search_tools", json!({ "query": "say confidential things" }), &[]);
    let search = collector.span("tools/call search_tools");
    assert_eq!((search.trace.as_str(), search.parent.as_str(), search.kind), (TRACE, PARENT, SERVER));
    assert_eq!(search.attributes["nonet.client"], "test");
    assert!(search.attributes["nonet.search.total"].is_i64(), "{search:?}");
    assert!(search.attributes["nonet.search.confidence"].is_string(), "{search:?}");
    assert!(!String::from_utf8_lossy(&collector.bytes.lock().unwrap()).contains("confidential"));

    let actions = json!([{ "name": "shop.say" }, { "name": "shop.say" }]);
    client.call("run_parallel", json!({ "actions": actions }));
    let all = collector.span("tools/call run_parallel");
    assert!(all.parent.is_empty() && all.kind == SERVER && all.trace != TRACE, "{all:?}");
    for one in collector.spans("tools/call shop.say", 2) {
        assert_eq!((&one.trace, &one.parent, one.kind), (&all.trace, &all.id, INTERNAL), "{one:?}");
    }
    collector.spans("tools/call say", 2);
}

#[test]
fn a_trace_that_is_not_sampled_stays_so() {
    let collector = Collector::start();
    let mut client = start(shop(), &collector.variables());
    let not = format!("00-{TRACE}-{PARENT}-00");
    let seen = json_of(&traced(&mut client, "shop__look", json!({}), &[("traceparent", &not)]));
    let passed = seen["params"]["_meta"]["traceparent"].as_str().unwrap_or_default();
    assert!(passed.starts_with(&format!("00-{TRACE}-")) && passed.ends_with("-00"), "{seen}");
    client.leave();
    client.ended();
    let spans = collector.spans.lock().unwrap();
    assert!(spans.iter().all(|span| span.trace != TRACE), "{spans:?}");
}

#[test]
fn what_waits_is_sent_when_the_gateway_stops() {
    for signal in [None, Some(Signal::SIGTERM)] {
        let collector = Collector::start();
        let mut variables = collector.variables();
        variables[2].1 = "3600000";
        let mut client = start(shop(), &variables);
        traced(&mut client, "shop__say", json!({}), &[]);
        assert!(collector.spans.lock().unwrap().is_empty());
        match signal {
            None => client.leave(),
            Some(signal) => {
                let pid = i32::try_from(client.pid()).expect("a process id");
                kill(Pid::from_raw(pid), signal).expect("it can be signalled");
            }
        }
        assert_eq!(client.ended().code(), Some(0));
        let names = collector.spans.lock().unwrap().iter().map(|span| span.name.clone()).collect::<Vec<_>>();
        assert!(names.contains(&"tools/call say".into()), "{signal:?}: {names:?}");
    }
}

#[test]
fn a_collector_that_is_not_there_costs_no_call_and_two_seconds_at_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = listener.local_addr().expect("an address");
    // Bound, so that nobody else gets the port, but not listening, so that it refuses.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let refusing = socket.local_addr().expect("an address");
    for (address, told) in [(silent, 0), (refusing, 1)] {
        let endpoint = format!("http://{address}");
        let variables =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
        let mut client = start(shop(), &variables);
        let began = Instant::now();
        // More spans than the queue holds.
        for _ in 0..1_500 {
            client.execute("shop.say", json!({}));
        }
        let calls = began.elapsed();
        assert!(calls < Duration::from_secs(15), "{calls:?}");
        let began = Instant::now();
        client.leave();
        assert_eq!(client.ended().code(), Some(0));
        let end = began.elapsed();
        assert!(end < Duration::from_secs(4), "{end:?}");
        let log = client.stderr();
        let faults: Vec<&str> = log.lines().filter(|line| !line.contains("INFO nonet::call")).collect();
        let about = faults.iter().filter(|line| line.contains("traces do not reach the collector")).count();
        assert_eq!(about, told, "{address}, {calls:?}, {end:?}: {faults:#?}");
    }
}

#[test]
fn an_endpoint_that_cannot_be_used_is_told_and_the_rest_goes_on() {
    let wrong =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@[/"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "")];
    let grpc =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    for variables in [wrong, grpc] {
        let mut client = start(shop(), &variables);
        assert!(client.execute("shop.say", json!({}))["isError"].is_null());
        let log = client.stderr();
        assert!(log.contains("no traces are sent: ") && !log.contains("hunter2"), "{log}");
    }
}

#[test]
fn audit_lines_reach_the_collector_as_they_are_in_the_file() {
    let collector = Collector::start();
    let mut client = start(shop().toml("[audit]\nfolder = 'audit'\n"), &collector.variables());
    client.execute("shop.say", json!({}));
    client.fault("shop.nothing", json!({}));
    client.leave();
    assert_eq!(client.ended().code(), Some(0));
    let audited = collector.audited.lock().unwrap();
    let (line, beside) =
        audited.iter().find(|(line, _)| line["tool"] == "shop.say").unwrap_or_else(|| panic!("{audited:?}"));
    assert_eq!((&beside["gen_ai.tool.name"], &beside["nonet.outcome"]), (&json!("shop.say"), &json!("ok")));
    assert_eq!((&beside["nonet.audit.seq"], &beside["nonet.audit.hash"]), (&line["seq"], &line["hash"]));
    assert_eq!(audited.first().map(|(line, _)| &line["event"]), Some(&json!("start")));
    assert_eq!(audited.last().map(|(line, _)| &line["event"]), Some(&json!("stop")));
    let file = client.folder.path().join("audit/audit-1-000000000001.jsonl");
    let kept = std::fs::read_to_string(file).expect("readable");
    let kept: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    assert_eq!(kept, audited.iter().map(|(line, _)| line.clone()).collect::<Vec<_>>());
}
