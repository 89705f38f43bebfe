//! Hundreds of clients behind a balancer while replicas and Redis come and go: every request gets its own
//! answer, and everything reported as kept is there.
//!
//! `NONET_LOAD` is the number of calls (default: 9,000).

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use nix::sys::signal::Signal;
use nonet_testing::RedisServer;
use parking_lot::Mutex;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};

use crate::{
    client::VERSION_KEY,
    cluster::ends,
    setup::{Setup, json_of},
    web::{OWN_TOKEN, Site, WebClient, http},
};

const CLIENTS: usize = 300;
/// How long a client tries to get one call answered.
const LIMIT: Duration = Duration::from_secs(60);

/// The addresses of the running replicas.
type Backends = Arc<Mutex<Vec<String>>>;

/// Passes connections to the replicas in turn. Knows nothing of HTTP.
async fn balance(listener: TcpListener, backends: Backends) {
    let turn = Arc::new(AtomicUsize::new(0));
    while let Ok((mut client, _)) = listener.accept().await {
        let (backends, turn) = (backends.clone(), turn.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                let at = turn.fetch_add(1, Ordering::Relaxed);
                let to = {
                    let backends = backends.lock();
                    backends[at % backends.len()].clone()
                };
                if let Ok(mut replica) = TcpStream::connect(&to).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut replica).await;
                    return;
                }
            }
        });
    }
}

/// The outcomes of the calls.
#[derive(Default)]
struct Tally {
    answered: AtomicUsize,
    /// Connections that broke before the answer, because their replica was killed.
    broken: AtomicUsize,
    /// Answers reporting a call lost with a replica.
    interrupted: AtomicUsize,
    /// Answers asking to try again.
    busy: AtomicUsize,
    /// Notices that nobody knows whether a scheduled call ran; any answer may have them.
    unknown: AtomicUsize,
}

/// A client of either era.
struct LoadClient {
    http: Client,
    url: String,
    number: usize,
    session: Option<String>,
    tally: Arc<Tally>,
}

impl LoadClient {
    async fn post(
        &self,
        message: &Value,
        session: Option<&str>,
    ) -> Option<(StatusCode, Option<String>, String)> {
        let mut request = self
            .http
            .post(&self.url)
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .bearer_auth(OWN_TOKEN);
        match session {
            Some(session) => {
                request = request.header("mcp-protocol-version", "2025-06-18");
                if !session.is_empty() {
                    request = request.header("mcp-session-id", session);
                }
            }
            None => {
                let name = message["params"]["name"].as_str().expect("a tool");
                request = request
                    .header("mcp-protocol-version", "2026-07-28")
                    .header("mcp-method", "tools/call")
                    .header("mcp-name", name);
            }
        }
        let reply = request.body(message.to_string()).send().await.ok()?;
        let session = reply.headers().get("mcp-session-id").map(|id| id.to_str().expect("text").to_owned());
        Some((reply.status(), session, reply.text().await.ok()?))
    }

    /// Performs the handshake, for a client with a session.
    async fn enter(&mut self) {
        if self.number % 2 == 1 {
            return;
        }
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "load", "version": "1" } });
        let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let until = Instant::now() + LIMIT;
        let session = loop {
            assert!(Instant::now() < until, "no handshake");
            if let Some((StatusCode::OK, Some(session), _)) = self.post(&message, Some("")).await {
                break session;
            }
            sleep(Duration::from_millis(50)).await;
        };
        let done = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        while self.post(&done, Some(&session)).await.is_none_or(|(status, ..)| status != StatusCode::ACCEPTED)
        {
            assert!(Instant::now() < until, "no end of the handshake");
            sleep(Duration::from_millis(50)).await;
        }
        self.session = Some(session);
    }

    /// Calls a tool until it is answered.
    async fn call(&self, id: usize, name: &str, arguments: Value) -> Value {
        let mut params = json!({ "name": name, "arguments": arguments });
        if self.session.is_none() {
            params["_meta"] = json!({
                VERSION_KEY: "2026-07-28",
                "io.modelcontextprotocol/clientInfo": { "name": "load", "version": "1" },
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        let until = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < until, "client {} got no answer to {message}", self.number);
            let Some((status, _, body)) = self.post(&message, self.session.as_deref()).await else {
                self.tally.broken.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            if status == StatusCode::SERVICE_UNAVAILABLE {
                self.tally.busy.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(100)).await;
                continue;
            }
            assert_eq!(status, StatusCode::OK, "client {}: {body}", self.number);
            let messages: Vec<Value> = match body.starts_with('{') {
                true => vec![serde_json::from_str(&body).expect("JSON")],
                false => {
                    let data = body.lines().filter_map(|line| line.strip_prefix("data:"));
                    data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect()
                }
            };
            let answers: Vec<&Value> =
                messages.iter().filter(|message| message.get("method").is_none()).collect();
            assert!(answers.len() <= 1, "one answer: {body}");
            let Some(answer) = answers.first() else {
                self.tally.broken.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            assert_eq!(answer["id"], id, "{body}");
            let result = &answer["result"];
            let blocks = result["content"].as_array().into_iter().flatten();
            let texts = blocks.filter_map(|block| block["text"].as_str());
            let unknown = texts.map(|text| text.matches(r#""outcome":"unknown""#).count()).sum();
            self.tally.unknown.fetch_add(unknown, Ordering::Relaxed);
            if result["isError"] == true {
                let fault = json_of(result);
                assert_eq!(fault["error"]["retryable"], true, "{body}");
                self.tally.interrupted.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(50)).await;
                continue;
            }
            return result.clone();
        }
    }
}

fn start(redis: &RedisServer, name: &str, log: &std::path::Path) -> Site {
    let tools = json!([{ "name": "echo" }, { "name": "mark" }, { "name": "long", "on": { "delay_ms": 2_500, "text": "long" } }]);
    let site = Setup::new()
        .toml(&redis.toml(name))
        .toml("[limits]\nconnections = 15000\n")
        .server("shop", json!({ "tools": tools, "call_log": log }))
        .serve_program();
    WebClient::new(&site.address, "/mcp").until_ready("shop");
    site
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_crossed_while_replicas_and_redis_come_and_go() {
    let Some(redis) = RedisServer::start_lasting() else { return };
    let calls: usize = std::env::var("NONET_LOAD").ok().and_then(|calls| calls.parse().ok()).unwrap_or(9_000);
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("calls");
    let mut sites: Vec<Site> = ["a", "b", "c"].iter().map(|name| start(&redis, name, &log)).collect();
    let backends: Backends = Arc::new(Mutex::new(sites.iter().map(|site| site.address.clone()).collect()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("bound"));
    tokio::spawn(balance(listener, backends.clone()));
    let (tally, over) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));

    let clients = (0..CLIENTS).map(|number| {
        let (url, tally) = (url.clone(), tally.clone());
        tokio::spawn(async move {
            let http = nonet_wire::web::client().expect("a client");
            let mut client = LoadClient { http, url, number, session: None, tally };
            client.enter().await;
            let mut tasks = Vec::new();
            for n in 0..calls.div_ceil(CLIENTS) {
                let text = format!("{number}-{n}");
                let result = client.call(n + 1, "shop__echo", json!({ "text": text })).await;
                assert_eq!(json_of(&result), json!({ "text": text }), "client {number}");
                client.tally.answered.fetch_add(1, Ordering::Relaxed);
                // Some clients run calls in the background, or later.
                if n == 3 && number % 30 == 1 {
                    let call = json!({ "name": "gateway.background_run", "params": { "name": "shop.long" } });
                    let task = json_of(&client.call(1_000_000, "execute_tool", call).await);
                    tasks.push(task["task_id"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned());
                }
                if n == 5 && number % 30 == 1 {
                    let params = json!({ "name": "shop.mark", "params": { "n": number }, "when": "in 4s" });
                    let call = json!({ "name": "gateway.schedule", "params": params });
                    let made = json_of(&client.call(2_000_000, "execute_tool", call).await);
                    assert!(made.get("job_id").is_some(), "{made}");
                }
            }
            (client, tasks)
        })
    });
    let clients: Vec<_> = clients.collect();

    // Meanwhile, replicas are killed, stopped and started, and Redis is restarted.
    let (chaos_over, chaos_backends, chaos_log) = (over.clone(), backends.clone(), log.clone());
    let chaos = std::thread::spawn(move || {
        let mut redis = redis;
        let mut turn = 0;
        while !chaos_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1_500));
            let at = turn % sites.len();
            match turn % 4 {
                1 => redis.restart(Duration::from_millis(700)),
                2 => {
                    // As an orchestrator does: no new connections, then a signal, then a new replica.
                    let fresh = start(&redis, &format!("r{turn}"), &chaos_log);
                    chaos_backends.lock()[at] = fresh.address.clone();
                    let mut old = ends(std::mem::replace(&mut sites[at], fresh), Signal::SIGTERM);
                    let _ = old.child().wait();
                }
                _ => {
                    let fresh = start(&redis, &format!("r{turn}"), &chaos_log);
                    let address = fresh.address.clone();
                    drop(ends(std::mem::replace(&mut sites[at], fresh), Signal::SIGKILL));
                    chaos_backends.lock()[at] = address;
                }
            }
            turn += 1;
        }
        (redis, sites, turn)
    });
    let done = join_all(clients).await;
    over.store(true, Ordering::Relaxed);
    let (_redis, sites, turns) =
        tokio::task::spawn_blocking(|| chaos.join().expect("chaos")).await.expect("joined");
    let done: Vec<(LoadClient, Vec<String>)> =
        done.into_iter().map(|client| client.expect("a client")).collect();
    eprintln!(
        "{} answers; {} connections broke, {} calls were interrupted, {} asked to try again; {turns} disturbances",
        tally.answered.load(Ordering::Relaxed),
        tally.broken.load(Ordering::Relaxed),
        tally.interrupted.load(Ordering::Relaxed),
        tally.busy.load(Ordering::Relaxed),
    );
    assert!(tally.answered.load(Ordering::Relaxed) >= calls);

    // Every background call has a readable end.
    for (client, tasks) in &done {
        for task in tasks {
            let call = json!({ "name": "gateway.background_run", "params": { "task_id": task } });
            let until = Instant::now() + LIMIT;
            let state = loop {
                let state =
                    json_of(&client.call(3_000_000, "execute_tool", call.clone()).await)["state"].clone();
                if state != "running" || Instant::now() > until {
                    break state;
                }
                sleep(Duration::from_millis(200)).await;
            };
            assert!(state == "completed" || state == "lost" || state == "failed", "{task}: {state}");
        }
    }
    // No schedule ran twice. One whose replica was killed meanwhile ran once, or its client reads that this
    // is unknown.
    let scheduled: Vec<&LoadClient> =
        done.iter().map(|(client, _)| client).filter(|client| client.number % 30 == 1).collect();
    let until = Instant::now() + LIMIT;
    loop {
        let unknown = tally.unknown.load(Ordering::Relaxed);
        let mut runs: BTreeMap<u64, usize> = BTreeMap::new();
        for line in fs::read_to_string(&log).unwrap_or_default().lines() {
            let call: Value = serde_json::from_str(line).unwrap_or_default();
            if call["params"]["name"] == "mark" {
                *runs.entry(call["params"]["arguments"]["n"].as_u64().expect("a number")).or_default() += 1;
            }
        }
        assert!(runs.values().all(|runs| *runs == 1), "{runs:?}");
        if runs.len() + unknown >= scheduled.len() {
            break;
        }
        assert!(Instant::now() < until, "{runs:?}, {unknown} unknown");
        for client in &scheduled {
            let echo = json!({ "name": "shop.echo", "params": { "text": "and?" } });
            client.call(4_000_000, "execute_tool", echo).await;
        }
        sleep(Duration::from_millis(200)).await;
    }
    for site in &sites {
        assert_eq!(http(&site.address, "GET", "/healthz", &[], "").status, 200);
    }
}
