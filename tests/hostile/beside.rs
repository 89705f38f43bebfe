//! A gateway with a good server, whose calls are measured, and with hostile additions.

use std::{
    fs,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    attackers::Attack,
    client::{Client, VERSION_KEY},
    rows::said,
    setup::{PATIENCE, Setup, eventually, json_of, text_of},
    web::{Site, http},
};

/// How a client reaches the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Stdio,
    Http,
}

impl Door {
    pub fn name(self) -> &'static str {
        match self {
            Door::Stdio => "stdio",
            Door::Http => "http",
        }
    }
}

pub struct Beside {
    gateway: Gateway,
    /// How long the good server's calls took.
    pub times: Vec<Duration>,
}

enum Gateway {
    Stdio(Box<Client>),
    Http(Site),
}

/// Limits that keep a row short, set for each server.
pub const SHORT: &str = "timeout = '2s'\nstart_timeout = '2s'";
/// The text of the good server's resource.
pub const GOOD_TEXT: &str = "the good text";
/// The URI of the good server's resource.
pub const GOOD_URI: &str = "notes://good/one";

/// The bearer tokens of the good HTTP client and of hostile ones: each has its own quotas.
const GOOD_TOKEN: &str = "good-client-0123456789abcdef";
pub const BAD_TOKEN: &str = "bad-client-0123456789abcdef0";

/// Sends a request of the stateless era with a token. Returns the whole answer.
pub fn send(address: &str, token: &str, method: &str, mut params: Value) -> Value {
    let mut meta = json!({
        VERSION_KEY: "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let (Some(meta), Some(own)) = (meta.as_object_mut(), params["_meta"].as_object()) {
        meta.extend(own.clone());
    }
    params["_meta"] = meta;
    let about = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default().to_string();
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let authorization = format!("Bearer {token}");
    let mut headers = vec![
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", method),
        ("authorization", authorization.as_str()),
    ];
    if !about.is_empty() {
        headers.push(("mcp-name", &about));
    }
    http(address, "POST", "/mcp", &headers, &message.to_string()).answer()
}

impl Beside {
    /// Starts a gateway with a good server and the additions of `arrange`. Waits for the good server.
    pub fn start(door: Door, arrange: impl Fn(Setup, Door) -> Setup) -> Self {
        let good = json!({
            "tools": [{ "name": "fine", "on": { "text": "fine" } }, { "name": "echo" }],
            "resources": [{ "uri": GOOD_URI, "name": "one", "text": GOOD_TEXT }],
        });
        // No call becomes a task: rows wait for the actual outcome.
        let setup = Setup::new().gateway("soft_deadline = '60s'").server("good", good);
        let setup = match door {
            Door::Stdio => setup,
            Door::Http => setup
                .gateway(&format!("tokens = ['{GOOD_TOKEN}']"))
                .toml(&format!("[profiles.others]\ntokens = ['{BAD_TOKEN}']")),
        };
        let setup = arrange(setup, door);
        let gateway = match door {
            Door::Stdio => {
                let can = json!({ "sampling": {}, "elicitation": {}, "roots": {} });
                Gateway::Stdio(Box::new(setup.start_program_with(can)))
            }
            Door::Http => Gateway::Http(setup.serve_program()),
        };
        let mut beside = Self { gateway, times: Vec::new() };
        eventually("the good server is ready", || (beside.state_of("good") == "ready").then_some(()));
        beside
    }

    /// Makes a request and waits for its whole answer.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        match &mut self.gateway {
            Gateway::Stdio(client) => client.request(method, params),
            Gateway::Http(site) => send(&site.address, GOOD_TOKEN, method, params),
        }
    }

    /// Calls one of the nine meta-tools. Returns its result.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let mut answer = self.request("tools/call", json!({ "name": tool, "arguments": arguments }));
        assert!(answer.get("result").is_some(), "no result: {answer:.300}");
        answer["result"].take()
    }

    /// Calls the good server and records the duration.
    pub fn good(&mut self) {
        let began = Instant::now();
        let result = self.call("execute_tool", json!({ "name": "good.fine" }));
        self.times.push(began.elapsed());
        assert_eq!(text_of(&result), "fine", "the good server: {result:.300}");
    }

    /// Returns the state of a server.
    fn state_of(&mut self, server: &str) -> String {
        let status = json_of(&self.call("execute_tool", json!({ "name": "gateway.status" })));
        let servers = status["servers"].as_array().cloned().unwrap_or_default();
        let server = servers.iter().find(|one| one["name"] == server);
        server.and_then(|one| one["state"].as_str()).unwrap_or("unknown").into()
    }

    /// Returns a server's entry in `gateway.status`.
    pub fn status_of(&mut self, server: &str) -> Value {
        let status = json_of(&self.call("execute_tool", json!({ "name": "gateway.status" })));
        let servers = status["servers"].as_array().cloned().unwrap_or_default();
        servers.into_iter().find(|one| one["name"] == server).unwrap_or_default()
    }

    /// Waits until a server has started or failed to, calling the good server meanwhile.
    pub fn until_settled(&mut self, server: &str) -> Result<(), String> {
        let began = Instant::now();
        while self.state_of(server) == "starting" {
            if began.elapsed() > PATIENCE {
                return Err(format!("`{server}` is still starting after {PATIENCE:?}"));
            }
            self.good();
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Calls a hostile tool, and the good server until that is answered. Returns the result.
    pub fn strike(&mut self, name: &str) -> Result<Value, String> {
        self.strike_with("execute_tool", json!({ "name": name }))
    }

    /// Strikes with another of the nine meta-tools.
    pub fn strike_with(&mut self, tool: &str, arguments: Value) -> Result<Value, String> {
        let params = json!({ "name": tool, "arguments": arguments });
        let open = match &mut self.gateway {
            Gateway::Stdio(client) => Open::Stdio(client.begin("tools/call", params)),
            Gateway::Http(site) => {
                let (sender, receiver) = mpsc::channel();
                let address = site.address.clone();
                thread::spawn(move || sender.send(send(&address, GOOD_TOKEN, "tools/call", params)));
                Open::Http(receiver)
            }
        };
        let began = Instant::now();
        loop {
            let answer = match (&open, &mut self.gateway) {
                (Open::Stdio(id), Gateway::Stdio(client)) => {
                    client.has_answer(*id).then(|| client.finish(*id))
                }
                (Open::Http(receiver), _) => match receiver.try_recv() {
                    Ok(answer) => Some(answer),
                    Err(mpsc::TryRecvError::Empty) => None,
                    Err(mpsc::TryRecvError::Disconnected) => return Err("the HTTP answer broke off".into()),
                },
                _ => None,
            };
            if let Some(mut answer) = answer {
                let Some(result) = answer.get_mut("result") else {
                    return Err(format!("no result: {answer:.300}"));
                };
                return Ok(result.take());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("no answer within {PATIENCE:?}"));
            }
            self.good();
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Attacks the gateway over HTTP, calling the good server until the attack has ended.
    pub fn attacked(&mut self, attack: Attack) -> Result<String, String> {
        let Gateway::Http(site) = &self.gateway else { return Err("clients attack over HTTP".into()) };
        let address = site.address.clone();
        let attacking = thread::spawn(move || attack(&address));
        let began = Instant::now();
        while !attacking.is_finished() {
            if began.elapsed() > 2 * PATIENCE {
                return Err(format!("it goes on after {:?}", began.elapsed()));
            }
            self.good();
            thread::sleep(Duration::from_millis(5));
        }
        attacking.join().unwrap_or_else(|panic| Err(said(&*panic)))
    }

    /// Returns the gateway's process id.
    #[cfg(target_os = "linux")]
    fn pid(&self) -> u32 {
        match &self.gateway {
            Gateway::Stdio(client) => client.pid(),
            Gateway::Http(site) => site.pid(),
        }
    }

    fn folder(&self) -> &Path {
        match &self.gateway {
            Gateway::Stdio(client) => client.folder.path(),
            Gateway::Http(site) => site.folder.path(),
        }
    }

    /// Returns the gateway's stderr output.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder().join("stderr")).unwrap_or_default()
    }

    /// Returns the gateway's peak memory use so far, in bytes.
    #[cfg(target_os = "linux")]
    pub fn peak(&self) -> usize {
        crate::setup::memory(self.pid(), "VmHWM")
    }

    #[cfg(not(target_os = "linux"))]
    pub fn peak(&self) -> usize {
        0
    }

    /// Ends the gateway: over stdio as a client leaves, over HTTP by a kill. Returns what is left of its
    /// servers after a while.
    pub fn end(self) -> Option<String> {
        let folder = self.folder().to_path_buf();
        match self.gateway {
            Gateway::Stdio(mut client) => {
                client.leave();
                client.ended();
            }
            Gateway::Http(site) => drop(site),
        }
        let began = Instant::now();
        loop {
            let left = processes_with(folder.to_str().expect("UTF-8"));
            if left.is_empty() {
                return None;
            }
            if began.elapsed() > PATIENCE {
                return Some(left.join("; "));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

enum Open {
    Stdio(i64),
    Http(mpsc::Receiver<Value>),
}

/// Returns the code of the fault in a result, if any.
pub fn code_of(result: &Value) -> Option<String> {
    if result["isError"] != true {
        return None;
    }
    let text = result["content"][0]["text"].as_str()?;
    serde_json::from_str::<Value>(text).ok()?["error"]["code"].as_str().map(String::from)
}

/// Returns the processes whose command line contains a text.
fn processes_with(text: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").expect("this system has /proc");
    let lines = all.flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(text)).collect()
}
