//! A client of the gateway over lines, of the `nonet` program or of a gateway in this process. Its JSON-RPC
//! is written by hand, to test what a client sees. Anything else on stdout fails the test.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tempfile::TempDir;

use crate::setup::{PATIENCE, Setup, eventually, json_of, notices_of};

/// The `_meta` key of the protocol version in the stateless era.
pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT_KEY: &str = "io.modelcontextprotocol/clientInfo";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

const NO_PROGRAM: &str = "the gateway runs in this process: use `start_program` or `serve_program`";

/// The client's answer to a request of the gateway: params to result.
type OnAsk = Box<dyn FnMut(&Value) -> Value>;

/// What runs the gateway.
pub enum Host {
    Program(Child),
    /// This process; the function ends the gateway.
    Here(Box<dyn FnMut() + Send + Sync>),
}

impl Host {
    /// Returns the program.
    pub fn child(&mut self) -> &mut Child {
        match self {
            Self::Program(child) => child,
            Self::Here(_) => panic!("{NO_PROGRAM}"),
        }
    }

    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        match self {
            Self::Program(child) => child.id(),
            Self::Here(_) => panic!("{NO_PROGRAM}"),
        }
    }
}

pub struct Client {
    pub folder: Arc<TempDir>,
    host: Host,
    stdin: Option<Box<dyn Write + Send>>,
    lines: Receiver<String>,
    last_id: i64,
    answers: HashMap<i64, (String, Value)>,
    /// The last answer as received.
    pub line: String,
    /// Notifications received, in order.
    pub notifications: Vec<Value>,
    /// Notices that were attached to answers, in order.
    pub notices: Vec<Value>,
    /// The params of the gateway's questions.
    pub asked: Vec<Value>,
    /// The ids of unanswered questions.
    unanswered: Vec<Value>,
    on_ask: Option<OnAsk>,
}

impl Setup {
    /// Runs `nonet` and shakes hands: for tests of the program itself, its files, its log or its signals.
    pub fn start_program(self) -> Client {
        self.start_program_with(json!({}))
    }

    /// Runs `nonet` and shakes hands as a client with these capabilities.
    pub fn start_program_with(self, capabilities: Value) -> Client {
        let mut client = self.start_program_silently();
        client.shake_hands(capabilities);
        client
    }

    /// Runs `nonet` without sending anything yet.
    pub fn start_program_silently(self) -> Client {
        self.run(&[])
    }

    /// Runs `nonet` with further arguments, without sending anything yet.
    pub fn run(self, arguments: &[&str]) -> Client {
        self.run_with(arguments, &[])
    }

    /// Runs `nonet` with environment variables in the folder as it is, without sending anything yet.
    pub fn run_again(self, variables: &[(&str, &str)]) -> Client {
        Client::over(Arc::new(self.folder), &[], variables)
    }

    /// Runs `nonet` with further arguments and environment variables, without sending anything yet.
    pub fn run_with(self, arguments: &[&str], variables: &[(&str, &str)]) -> Client {
        self.write();
        Client::over(Arc::new(self.folder), arguments, variables)
    }
}

/// Parses an answer whose result is JSON with a number too large for a tree.
pub fn with_result_as_text(line: &str) -> serde_json::Result<Value> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        jsonrpc: &'a str,
        id: i64,
        #[serde(borrow)]
        result: &'a RawValue,
    }
    let Answer { jsonrpc, id, result } = serde_json::from_str(line)?;
    let block = json!({ "type": "text", "text": result.get() });
    Ok(json!({ "jsonrpc": jsonrpc, "id": id, "result": { "content": [block] } }))
}

/// Returns the command of `nonet` in a folder that is its home and contains `servers.toml`.
pub fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nonet"));
    command
        .arg("--config")
        .arg(folder.join("servers.toml"))
        .current_dir(folder)
        .env("HOME", folder)
        .env("NONET_KEYRING", "off")
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_STATE_HOME")
        .env_remove("NONET_CONFIG")
        .env_remove("NONET_LOG")
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT");
    command
}

impl Client {
    /// Runs `nonet` in a folder that contains `servers.toml`.
    pub fn over(folder: Arc<TempDir>, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut nonet = command(folder.path());
        nonet.args(arguments).envs(variables.iter().copied());
        Self::of(folder, &mut nonet)
    }

    /// Runs a command that starts `nonet`.
    pub fn of(folder: Arc<TempDir>, command: &mut Command) -> Self {
        let mut child = command
            .env("NONET_LOG", "debug")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join("stderr")).expect("a file for stderr"))
            .spawn()
            .expect("nonet starts");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        Self::new(folder, Host::Program(child), stdin, stdout)
    }

    /// Talks to a gateway over these streams.
    pub fn new(
        folder: Arc<TempDir>,
        host: Host,
        stdin: impl Write + Send + 'static,
        stdout: impl Read + Send + 'static,
    ) -> Self {
        let stdout = BufReader::new(stdout);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            folder,
            host,
            stdin: Some(Box::new(stdin)),
            lines,
            last_id: 0,
            answers: HashMap::new(),
            line: String::new(),
            notifications: Vec::new(),
            notices: Vec::new(),
            asked: Vec::new(),
            unanswered: Vec::new(),
            on_ask: None,
        }
    }

    /// Leaves, and runs another `nonet` in the same folder.
    pub fn restart(mut self) -> Self {
        self.leave();
        self.ended();
        Self::over(self.folder.clone(), &[], &[])
    }

    /// Runs another `nonet` in the same folder beside this one, without sending anything yet.
    pub fn beside(&self, arguments: &[&str]) -> Self {
        Self::over(self.folder.clone(), arguments, &[])
    }

    /// Returns the program.
    pub fn child(&mut self) -> &mut Child {
        self.host.child()
    }

    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        self.host.pid()
    }

    /// Performs the handshake as a client with these capabilities.
    pub fn shake_hands(&mut self, capabilities: Value) {
        let answer = self.initialize("2025-06-18", capabilities);
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
    }

    /// Performs the handshake of the session era. Returns the whole answer.
    pub fn initialize(&mut self, version: &str, capabilities: Value) -> Value {
        let info = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": capabilities, "clientInfo": info });
        let answer = self.request("initialize", params);
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        answer
    }

    /// Answers the gateway's questions from now on.
    pub fn answer_questions(&mut self, answer: impl FnMut(&Value) -> Value + 'static) {
        self.on_ask = Some(Box::new(answer));
    }

    /// Answers the questions left unanswered (by a null) so far.
    pub fn answer_the_rest(&mut self, result: Value) {
        for id in std::mem::take(&mut self.unanswered) {
            self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
        }
    }

    pub fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    pub fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("nonet reads its stdin");
        stdin.flush().expect("nonet reads its stdin");
    }

    /// Sends a request and returns its id.
    pub fn begin(&mut self, method: &str, params: Value) -> i64 {
        self.last_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params }));
        self.last_id
    }

    /// Begins a `tools/call`.
    pub fn begin_call(&mut self, tool: &str, arguments: Value) -> i64 {
        self.begin("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Waits for the answer to a request. Returns the whole message.
    pub fn finish(&mut self, id: i64) -> Value {
        let began = Instant::now();
        loop {
            if let Some((line, answer)) = self.answers.remove(&id) {
                self.line = line;
                self.notices.extend(notices_of(&answer["result"]));
                return answer;
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no answer to request {id}"));
            self.take(line);
        }
    }

    fn take(&mut self, line: String) {
        let read = serde_json::from_str(&line).or_else(|_| with_result_as_text(&line));
        let message: Value = read.unwrap_or_else(|_| panic!("not JSON on stdout: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "not JSON-RPC on stdout: {line}");
        match (message.get("method").is_some(), message.get("id").cloned()) {
            (true, Some(id)) => {
                self.asked.push(message["params"].clone());
                let answer = match self.on_ask.as_mut() {
                    Some(answer) => match answer(&message["params"]) {
                        // The user takes some time.
                        Value::Null => return self.unanswered.push(id),
                        result => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
                    },
                    None => {
                        let error = json!({ "code": -32601, "message": "not here" });
                        json!({ "jsonrpc": "2.0", "id": id, "error": error })
                    }
                };
                self.send(&answer);
            }
            (true, None) => self.notifications.push(message),
            // An error about an unreadable line has no id.
            (false, id) => {
                let id = id.as_ref().and_then(Value::as_i64).unwrap_or(-1);
                self.answers.insert(id, (line, message));
            }
        }
    }

    /// Whether the answer to this request has arrived; does not wait.
    pub fn has_answer(&mut self, id: i64) -> bool {
        while let Ok(line) = self.lines.try_recv() {
            self.take(line);
        }
        self.answers.contains_key(&id)
    }

    /// Returns the answer to this request, if it has arrived; leaves the gateway's questions unanswered.
    pub fn silent_answer(&mut self, id: i64) -> Option<Value> {
        while let Ok(line) = self.lines.try_recv() {
            let message: Value = serde_json::from_str(&line).expect("JSON on stdout");
            if message.get("method").is_none() && message["id"] == id {
                return Some(message);
            }
        }
        None
    }

    /// Sends a request and waits for its answer. Returns the whole message.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.finish(id)
    }

    /// Sends a request of the stateless era.
    pub fn modern(&mut self, method: &str, mut params: Value, capabilities: Value) -> Value {
        params["_meta"] = json!({
            VERSION_KEY: "2026-07-28",
            CLIENT_KEY: { "name": "test", "version": "1" },
            CAPABILITIES_KEY: capabilities,
        });
        self.request(method, params)
    }

    /// Calls a tool. Returns its result.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.begin_call(tool, arguments);
        self.result(id)
    }

    /// Waits for the result of a request.
    pub fn result(&mut self, id: i64) -> Value {
        let mut answer = self.finish(id);
        assert!(answer.get("result").is_some(), "no result: {answer}");
        answer["result"].take()
    }

    /// Calls a tool. Returns the JSON in the first text block.
    pub fn answer(&mut self, tool: &str, arguments: Value) -> Value {
        json_of(&self.call(tool, arguments))
    }

    /// Runs a server's tool. Returns its result.
    pub fn execute(&mut self, name: &str, params: Value) -> Value {
        self.call("execute_tool", json!({ "name": name, "params": params }))
    }

    /// Runs a server's tool that fails. Returns the fault.
    pub fn fault(&mut self, name: &str, params: Value) -> Value {
        let result = self.execute(name, params);
        assert_eq!(result["isError"], true, "{result}");
        json_of(&result)["error"].take()
    }

    /// Returns the code of the fault that a call of a server's tool ends with, if any.
    pub fn fault_code(&mut self, name: &str) -> Option<String> {
        let result = self.execute(name, json!({}));
        (result["isError"] == true).then(|| json_of(&result)["error"]["code"].as_str().map(String::from))?
    }

    /// Returns a server's entry in `gateway.status`.
    pub fn server(&mut self, name: &str) -> Value {
        let status = json_of(&self.execute("gateway.status", json!({})));
        let servers = status["servers"].as_array().expect("a list").clone();
        servers.into_iter().find(|server| server["name"] == name).expect("it is configured")
    }

    /// Waits until a server is in this state. Returns its entry in `gateway.status`.
    pub fn until(&mut self, name: &str, state: &str) -> Value {
        eventually(&format!("`{name}` is {state}"), || {
            Some(self.server(name)).filter(|s| s["state"] == state)
        })
    }

    /// Waits until a server is ready and its tools are published.
    pub fn until_ready(&mut self, name: &str) {
        eventually(&format!("`{name}` is ready"), || {
            let server = self.server(name);
            (server["state"] == "ready" && server["tools"] != 0).then_some(())
        });
    }

    /// Waits for a notice of this kind.
    pub fn until_notice(&mut self, kind: &str) -> Value {
        eventually(&format!("a notice `{kind}`"), || {
            self.execute("gateway.status", json!({}));
            self.notices.iter().find(|notice| notice["kind"] == kind).cloned()
        })
    }

    /// Leaves as a client does: by closing stdin.
    pub fn leave(&mut self) {
        self.stdin = None;
    }

    /// Waits until the program has ended.
    pub fn ended(&mut self) -> ExitStatus {
        eventually("nonet ends", || self.child().try_wait().expect("it can be waited for"))
    }

    /// Returns the stderr output of the program so far.
    pub fn stderr(&self) -> String {
        assert!(matches!(self.host, Host::Program(_)), "{NO_PROGRAM}");
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.leave();
        let child = match &mut self.host {
            Host::Program(child) => child,
            Host::Here(end) => return end(),
        };
        if std::thread::panicking() {
            let stderr = fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default();
            eprintln!("---- stderr of nonet ----\n{stderr}");
        }
        // Hanging calls keep the program alive for a while after its stdin has closed.
        for patience in [Duration::from_millis(500), Duration::from_secs(6)] {
            let began = Instant::now();
            while began.elapsed() < patience {
                if let Ok(Some(_)) = child.try_wait() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            if let Ok(pid) = i32::try_from(child.id()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
