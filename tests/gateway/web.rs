//! `nonet serve --http`, and a hand-written HTTP client with one connection per request. The client sends the
//! token of this machine's user to gateways without tokens of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File, OpenOptions},
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::{Host, VERSION_KEY, command, with_result_as_text},
    setup::{PATIENCE, Setup, eventually, json_of},
};

/// The token of this machine's user in every folder.
pub const OWN_TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// The addresses of gateways that need it.
static NEED_OWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Puts the user's token into the state folder of a home folder.
pub fn give_token(home: &Path) {
    let state = home.join(".local/state/nonet");
    DirBuilder::new().recursive(true).mode(0o700).create(&state).expect("a folder");
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(token_file(home));
    file.expect("a file").write_all(OWN_TOKEN.as_bytes()).expect("written");
}

/// Returns the file with the user's token.
pub fn token_file(home: &Path) -> PathBuf {
    home.join(".local/state/nonet/http.token")
}

/// Returns the line of the header with the user's token, if the gateway at an address needs it.
pub fn own_header(address: &str) -> String {
    match NEED_OWN.lock().expect("no panic").contains(address) {
        true => format!("Authorization: Bearer {OWN_TOKEN}\r\n"),
        false => String::new(),
    }
}

pub struct Site {
    pub folder: Arc<TempDir>,
    pub address: String,
    pub host: Host,
    /// The link to the page, of a gateway in this process.
    pub page: Option<String>,
}

impl Setup {
    /// Runs `nonet serve --http` on a free port: for tests of the program itself, its files, its log or its
    /// signals.
    pub fn serve_program(self) -> Site {
        self.serve_at("127.0.0.1:0")
    }

    /// Runs `nonet serve --http` at an address.
    pub fn serve_at(self, address: &str) -> Site {
        give_token(self.folder.path());
        self.serve_for_the_first_time(address)
    }

    /// Runs `nonet serve --http` in a folder where nothing was served before: Nonet makes the user's token
    /// itself.
    pub fn serve_for_the_first_time(self, address: &str) -> Site {
        let written = fs::read_to_string(self.write()).expect("it is there");
        let folder = Arc::new(self.folder);
        let errors = folder.path().join("stderr");
        let child = command(folder.path())
            .args(["serve", "--http", address])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&errors).expect("a file for stderr"))
            .spawn()
            .expect("nonet starts");
        let address = eventually("nonet says where it serves", || {
            let text = fs::read_to_string(&errors).ok()?;
            let (_, rest) = text.split_once("serving MCP at http://")?;
            Some(rest.split_once("/mcp")?.0.to_string())
        });
        let is_known = fs::read_to_string(token_file(folder.path())).is_ok_and(|token| token == OWN_TOKEN);
        if is_known {
            note_token(&written, &address);
        }
        Site { folder, address, host: Host::Program(child), page: None }
    }
}

/// Notes that requests to an address need the token of this machine's user, unless the configuration has
/// tokens.
pub fn note_token(config: &str, address: &str) {
    let guards = |line: &str| line.trim_start().starts_with("tokens") || line == "[auth]";
    if !config.lines().any(guards) {
        NEED_OWN.lock().expect("no panic").insert(address.into());
    }
}

impl Site {
    /// Returns the program.
    pub fn child(&mut self) -> &mut Child {
        self.host.child()
    }

    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        self.host.pid()
    }

    /// Returns the token of the page. A program prints it only at a terminal; `nonet ui` has it once the
    /// gateway can be found.
    pub fn page_token(&self) -> String {
        if let Some(link) = &self.page {
            return link.split_once("#token=").expect("its link has a token").1.into();
        }
        let shared = self.folder.path().join(".local/state/nonet/shared");
        eventually("the gateway's socket is there", || {
            let names = fs::read_dir(&shared).ok()?.flatten().map(|entry| entry.path());
            names.into_iter().any(|path| path.extension().is_some_and(|end| end == "sock")).then_some(())
        });
        let ui = command(self.folder.path()).args(["ui", "--no-browser"]).output().expect("nonet runs");
        let link = String::from_utf8_lossy(&ui.stdout).into_owned();
        let (address, token) = link.trim().split_once("/ui#token=").unwrap_or_else(|| panic!("{ui:?}"));
        assert_eq!(address, format!("http://{}", self.address), "it is the page of this gateway");
        token.into()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let child = match &mut self.host {
            Host::Program(child) => child,
            Host::Here(end) => return end(),
        };
        if std::thread::panicking() {
            let errors = fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
            eprintln!("---- stderr of nonet ----\n{errors}");
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Headers by lower-case name.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Reply {
    /// Returns a header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns all JSON-RPC messages of the reply, from an event stream or plain JSON.
    pub fn messages(&self) -> Vec<Value> {
        if !self.headers.get("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return read(&self.body).into_iter().collect();
        }
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data:"));
        data.filter_map(|data| read(data.trim())).collect()
    }

    /// Returns the answer to the request.
    pub fn answer(&self) -> Value {
        let mut answers = self.messages().into_iter().filter(|message| message.get("method").is_none());
        answers.next().unwrap_or_else(|| panic!("no answer: {self:?}"))
    }

    /// Returns the result of the request.
    pub fn result(&self) -> Value {
        let mut answer = self.answer();
        assert!(answer.get("result").is_some(), "no result: {answer}");
        answer["result"].take()
    }
}

/// Sends one request; `headers` are added to `Host`, `Accept` and `Content-Type`, or replace them.
pub fn http(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut all = BTreeMap::from([
        ("host", address),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
        ("connection", "close"),
    ]);
    let own = own_header(address);
    all.extend(own.trim_end().split_once(": ").map(|(_, value)| ("authorization", value)));
    all.extend(headers.iter().copied());
    let mut text = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in all {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(address).expect("nonet listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.write_all(format!("{text}\r\n{body}").as_bytes()).expect("nonet reads");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("nonet answers");
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an HTTP head");
    let (head, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 4..]);
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_string()))
        .collect();
    let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
    let body = if chunked { unchunk(body) } else { body.to_vec() };
    Reply { status, headers, body: String::from_utf8(body).expect("UTF-8") }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).expect("a chunk size");
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk size");
        out.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
        if size == 0 {
            break;
        }
    }
    out
}

/// A client of the session era.
pub struct WebClient {
    pub address: String,
    pub path: String,
    pub session: String,
    /// The value of `Authorization`; not sent if empty.
    pub authorization: String,
    last_id: i64,
}

impl WebClient {
    /// Performs the handshake at a path such as `/mcp`.
    pub fn new(address: &str, path: &str) -> Self {
        Self::with_token(address, path, "")
    }

    /// Performs the handshake with a bearer token.
    pub fn with_token(address: &str, path: &str, token: &str) -> Self {
        let authorization = if token.is_empty() { String::new() } else { format!("Bearer {token}") };
        let params = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        });
        let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let sent = Vec::from_iter((!token.is_empty()).then_some(("authorization", authorization.as_str())));
        let reply = http(address, "POST", path, &sent, &message.to_string());
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.result()["protocolVersion"], "2025-06-18");
        let session = reply.headers.get("mcp-session-id").expect("a session id").clone();
        let client = Self { address: address.into(), path: path.into(), session, authorization, last_id: 0 };
        let reply = client.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        assert_eq!(reply.status, 202, "{reply:?}");
        client
    }

    /// Returns a client that continues another one's session.
    pub fn resumed(address: &str, path: &str, session: &str, authorization: &str) -> Self {
        let (address, path, session) = (address.into(), path.into(), session.into());
        // A separate range of ids: the other client may have requests in flight.
        static RESUMED: AtomicI64 = AtomicI64::new(0);
        let last_id = 1_000_000 * (RESUMED.fetch_add(1, Ordering::Relaxed) + 1);
        Self { address, path, session, authorization: authorization.into(), last_id }
    }

    pub fn post(&self, message: &Value) -> Reply {
        let mut headers =
            vec![("mcp-session-id", self.session.as_str()), ("mcp-protocol-version", "2025-06-18")];
        if !self.authorization.is_empty() {
            headers.push(("authorization", &self.authorization));
        }
        http(&self.address, "POST", &self.path, &headers, &message.to_string())
    }

    pub fn request(&mut self, method: &str, params: Value) -> Reply {
        self.last_id += 1;
        self.post(&json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params }))
    }

    /// Calls a tool. Returns its result.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments })).result()
    }

    /// Calls a tool. Returns the JSON in the first text block.
    pub fn answer(&mut self, tool: &str, arguments: Value) -> Value {
        json_of(&self.call(tool, arguments))
    }

    /// Sends a request. Returns its status.
    pub fn status(&mut self, method: &str) -> u16 {
        self.request(method, json!({})).status
    }

    /// Waits until a server is ready.
    pub fn until_ready(&mut self, name: &str) {
        eventually(&format!("`{name}` is ready"), || {
            let status = self.answer("execute_tool", json!({ "name": "gateway.status" }));
            let mut servers = status["servers"].as_array()?.iter();
            servers.any(|s| s["name"] == name && s["state"] == "ready" && s["tools"] != 0).then_some(())
        });
    }
}

/// Sends a request of the stateless era, with the headers that repeat parts of its body.
pub fn modern(address: &str, method: &str, params: Value) -> Reply {
    modern_as(address, "", method, params)
}

/// Sends a request of the stateless era with a bearer token.
pub fn modern_as(address: &str, token: &str, method: &str, params: Value) -> Reply {
    modern_with(address, token, method, params, json!({}))
}

/// Sends the same from a client with these capabilities.
pub fn modern_with(address: &str, token: &str, method: &str, mut params: Value, can: Value) -> Reply {
    params["_meta"] = json!({
        VERSION_KEY: "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": can,
    });
    let name = params["name"].as_str().unwrap_or_default().to_string();
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
    if !name.is_empty() {
        headers.push(("mcp-name", &name));
    }
    let authorization = format!("Bearer {token}");
    if !token.is_empty() {
        headers.push(("authorization", &authorization));
    }
    http(address, "POST", "/mcp", &headers, &message.to_string())
}

/// Returns the events of a page's stream, up to the first one that contains a text.
pub fn first_events(address: &str, path: &str, token: &str, last: &str) -> Vec<Value> {
    let mut stream = TcpStream::connect(address).expect("nonet listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nX-Nonet-Token: {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("nonet reads");
    let (mut text, mut piece) = (String::new(), [0; 4_096]);
    while !text.contains(last) || !text.ends_with('\n') {
        let count = stream.read(&mut piece).expect("nonet answers");
        assert!(count > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

/// Reads a message; a result that this test cannot read as JSON, such as one with a number beyond all,
/// becomes text.
fn read(json: &str) -> Option<Value> {
    serde_json::from_str(json).or_else(|_| with_result_as_text(json)).ok()
}
