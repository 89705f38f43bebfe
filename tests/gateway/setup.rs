//! A configuration with scripted servers in a temporary folder.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// The time limit for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One server behind the gateway.
pub struct Server {
    pub name: String,
    /// Its script; `None` for a server described in `keys`.
    pub script: Option<Value>,
    /// Further keys of its table.
    pub keys: String,
}

pub struct Setup {
    pub folder: TempDir,
    pub servers: Vec<Server>,
    gateway: String,
    more: String,
    /// Keys of `[embedder]`; by default no model is loaded.
    embedder: Option<String>,
}

impl Setup {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder, servers: Vec::new(), gateway: String::new(), more: String::new(), embedder: None }
    }

    /// Adds a scripted server.
    pub fn server(self, name: &str, script: Value) -> Self {
        self.server_with(name, script, "")
    }

    /// Adds a scripted server with further keys, such as `parallel = true`.
    pub fn server_with(mut self, name: &str, script: Value, keys: &str) -> Self {
        self.servers.push(Server { name: name.into(), script: Some(script), keys: keys.into() });
        self
    }

    /// Adds a server described by its keys only.
    pub fn server_of(mut self, name: &str, keys: &str) -> Self {
        self.servers.push(Server { name: name.into(), script: None, keys: keys.into() });
        self
    }

    /// Adds keys of `[gateway]`.
    pub fn gateway(mut self, keys: &str) -> Self {
        self.gateway.push_str(keys);
        self.gateway.push('\n');
        self
    }

    /// Searches by meaning, with the built-in model and these keys of `[embedder]`.
    pub fn by_meaning(mut self, keys: &str) -> Self {
        self.embedder = Some(keys.into());
        self
    }

    /// Whether search by meaning is wanted.
    pub fn embeds(&self) -> bool {
        self.embedder.is_some()
    }

    /// Adds tables at the end of the file.
    pub fn toml(mut self, text: &str) -> Self {
        self.more.push_str(text);
        self.more.push('\n');
        self
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the configuration. `transport` returns how a scripted server is reached.
    pub fn text(&self, transport: impl Fn(&Server, &Value) -> String) -> String {
        let folder = self.folder.path().display();
        let no_model = || format!("model = '{folder}/no-model'");
        let embedder = self.embedder.clone().unwrap_or_else(no_model);
        let mut text =
            format!("[gateway]\n{}\n[embedder]\ncache = '{folder}/cache'\n{embedder}\n", self.gateway);
        for server in &self.servers {
            let _ = writeln!(text, "[servers.{}]", server.name);
            if let Some(script) = &server.script {
                let _ = writeln!(text, "{}", transport(server, script));
            }
            let _ = writeln!(text, "{}", server.keys);
        }
        text + &self.more
    }

    /// Writes the configuration with scripted servers as child processes.
    pub fn write(&self) -> PathBuf {
        let text = self.text(|server, script| {
            let file = self.path(&format!("{}.script.json", server.name));
            fs::write(&file, script.to_string()).expect("the script can be written");
            format!("command = '{}'\nargs = ['--script-file', '{}']", fake_server().display(), file.display())
        });
        let file = self.path("servers.toml");
        fs::write(&file, text).expect("the configuration can be written");
        file
    }
}

/// Returns the path of the scripted server's program.
pub fn fake_server() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_nonet")).parent().expect("it is in a folder");
    let program = folder.join("examples").join("fake_server");
    assert!(program.exists(), "{} is missing: run `cargo build --examples`", program.display());
    program
}

/// Retries until there is a value.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "this did not happen: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns a figure of a process from the system, such as `VmRSS`, in bytes.
#[cfg(target_os = "linux")]
pub fn memory(pid: u32, key: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// Returns the JSON lines of a scripted server's log.
pub fn logged(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the JSON in the first text block of a result.
pub fn json_of(result: &Value) -> Value {
    let text = text_of(result);
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: not JSON: {result}"))
}

/// Returns the first text block of a result.
pub fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}

/// Returns the notices in a result.
pub fn notices_of(result: &Value) -> Vec<Value> {
    let blocks = result["content"].as_array().into_iter().flatten();
    let notes = blocks.filter_map(|block| serde_json::from_str::<Value>(block["text"].as_str()?).ok());
    notes.filter_map(|note| note["notices"].as_array().cloned()).flatten().collect()
}

/// Returns an answer for a golden file, with run-dependent values replaced.
pub fn golden(mut value: Value) -> Value {
    redact(&mut value);
    value
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                match key.as_str() {
                    "score" | "confidence" | "elapsed_ms" | "task_id" | "token" | "ref" | "bytes" => {
                        *value = Value::String(format!("<{key}>"));
                    }
                    _ => redact(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}
