//! State shared by all connections: lists, plain requests, tasks, and subscribers.

use std::{
    collections::{BTreeSet, HashMap},
    io::Write,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::Notify, time::sleep};

use super::{
    LEGACY, MODERN, SERVER_INFO_KEY, SUBSCRIPTION_KEY,
    out::{Out, flood_stderr, rpc_error},
    script::{Flood, Prompt, Resource, Script, Tool},
};

pub(super) struct Server {
    pub(super) script: Script,
    pub(super) tools: Mutex<Vec<Tool>>,
    pub(super) calls: AtomicU64,
    pub(super) calls_by_tool: Mutex<HashMap<String, usize>>,
    /// Modern `subscriptions/listen` requests: their outputs and ids.
    pub(super) listeners: Mutex<Vec<(Out, Value)>>,
    /// Subscribed resources: from the session era, and from the filters of listeners.
    pub(super) followed: Mutex<BTreeSet<String>>,
    /// Tasks, by their id.
    pub(super) tasks: Mutex<HashMap<String, FakeTask>>,
    /// Messages of floods so far.
    pub(super) floods: AtomicU64,
    /// Held by one flood at a time, so that floods do not interleave.
    pub(super) flooding: tokio::sync::Mutex<()>,
    /// Set once nothing more is read.
    pub(super) is_deaf: AtomicBool,
    /// Raised when a crash is due.
    pub(super) gone: Notify,
    logging: Mutex<()>,
}

/// A call that continues as a task.
pub(super) struct FakeTask {
    pub(super) looks_left: u64,
    pub(super) result: Value,
    pub(super) fails: bool,
    pub(super) cancelled: bool,
}

impl FakeTask {
    fn status(&self) -> &'static str {
        match (self.cancelled, self.looks_left, self.fails) {
            (true, ..) => "cancelled",
            (_, 1.., _) => "working",
            (_, 0, true) => "failed",
            (_, 0, false) => "completed",
        }
    }
}

/// The era of one request: a dual server decides by its `_meta`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Legacy,
    Modern,
}

impl Server {
    pub(super) fn new(script: Script) -> Arc<Self> {
        let mut tools = script.tools.clone();
        tools.extend((0..script.tool_count).map(|n| Tool {
            name: format!("tool_{n:04}"),
            description: Some(format!("Generated tool number {n}")),
            input_schema: Some(json!({ "type": "object", "properties": { "value": { "type": "string" } } })),
            ..Tool::default()
        }));
        Arc::new(Self {
            script,
            tools: Mutex::new(tools),
            calls: AtomicU64::new(0),
            calls_by_tool: Mutex::default(),
            listeners: Mutex::default(),
            followed: Mutex::default(),
            tasks: Mutex::default(),
            floods: AtomicU64::new(0),
            flooding: tokio::sync::Mutex::default(),
            is_deaf: AtomicBool::new(false),
            gone: Notify::new(),
            logging: Mutex::default(),
        })
    }

    /// Acts before anything is read. Returns an exit code if the server ends here.
    pub(super) async fn start(&self) -> Option<i32> {
        let script = &self.script;
        for line in &script.stderr_lines {
            eprintln!("{line}");
        }
        if let Some(code) = script.exit_at_start {
            return Some(code);
        }
        if script.exit_unless_file.as_ref().is_some_and(|file| !file.exists()) {
            return Some(1);
        }
        let mut pid = std::process::id();
        if script.grandchild {
            let null = std::process::Stdio::null;
            pid = std::process::Command::new("sleep")
                .arg("1000")
                .stdin(null())
                .stdout(null())
                .stderr(null())
                .spawn()
                .expect("`sleep` is on the path")
                .id();
        }
        if let Some(file) = &script.pid_file {
            std::fs::write(file, pid.to_string()).expect("the pid file can be written");
        }
        sleep(Duration::from_millis(script.start_delay_ms)).await;
        if script.stderr_flood {
            flood_stderr(1024 * 1024).await;
        }
        None
    }

    pub(super) fn log(&self, file: Option<&Path>, line: &Value) {
        let Some(file) = file else { return };
        let _one_at_a_time = self.logging.lock().unwrap();
        let mut file =
            std::fs::File::options().create(true).append(true).open(file).expect("the log can be opened");
        file.write_all(format!("{line}\n").as_bytes()).expect("the log can be written");
    }

    pub(super) fn log_cancelled(&self, id: &Value) {
        self.log(self.script.call_log.as_deref(), &json!({ "cancelled": id }));
    }

    fn info(&self) -> Value {
        let name = self.script.name.as_deref().unwrap_or("fake");
        let version = self.script.version.as_deref().unwrap_or("1.0.0");
        json!({ "name": name, "version": version })
    }

    fn capabilities(&self) -> Value {
        let mut capabilities = json!({ "tools": { "listChanged": true }, "logging": {} });
        if !self.script.prompts.is_empty() {
            capabilities["prompts"] = json!({});
            capabilities["completions"] = json!({});
        }
        if self.script.has_resources() {
            capabilities["resources"] = json!({ "subscribe": true });
        }
        if !self.script.skills.is_empty() {
            capabilities["extensions"] = json!({ "io.modelcontextprotocol/skills": {} });
        }
        capabilities
    }

    /// Adds what a result needs in its era.
    pub(super) fn dress(&self, mut result: Value, wire: Wire) -> Value {
        let wanted = self.script.require_result_type.unwrap_or(wire == Wire::Modern);
        if let Some(result) = result.as_object_mut() {
            if !wanted {
                result.remove("resultType");
            } else if !result.contains_key("resultType") {
                result.insert("resultType".into(), json!("complete"));
            }
        }
        result
    }

    /// Answers every request except `tools/call` and `subscriptions/listen`.
    pub(super) fn plain_request(&self, method: &str, params: &Value, wire: Wire) -> Result<Value, Value> {
        let script = &self.script;
        if let Some(answer) = self.task_request(method, params, wire) {
            return answer;
        }
        let mut result = match method {
            "initialize" => {
                let asked = params["protocolVersion"].as_str().filter(|version| LEGACY.contains(version));
                let version = script.protocol.as_deref().or(asked).unwrap_or(LEGACY[3]);
                let mut result = json!({
                    "protocolVersion": version,
                    "capabilities": self.capabilities(),
                    "serverInfo": self.info(),
                });
                if let Some(instructions) = &script.instructions {
                    result["instructions"] = json!(instructions);
                }
                result
            }
            "server/discover" => {
                let mut result =
                    json!({ "supportedVersions": [MODERN], "capabilities": self.capabilities() });
                if let Some(instructions) = &script.instructions {
                    result["instructions"] = json!(instructions);
                }
                result
            }
            "ping" | "logging/setLevel" if wire == Wire::Legacy => json!({}),
            "resources/subscribe" | "resources/unsubscribe"
                if wire == Wire::Legacy && script.has_resources() =>
            {
                let uri = params["uri"].as_str().unwrap_or_default().to_string();
                let mut followed = self.followed.lock().unwrap();
                let _ = if method == "resources/subscribe" {
                    followed.insert(uri)
                } else {
                    followed.remove(&uri)
                };
                json!({})
            }
            "tools/list" => self.list_tools(params)?,
            "prompts/list" if !script.prompts.is_empty() => {
                json!({ "prompts": script.prompts.iter().map(Prompt::definition).collect::<Vec<_>>() })
            }
            "prompts/get" if !script.prompts.is_empty() => {
                let name = params["name"].as_str().unwrap_or_default();
                let prompt = script.prompts.iter().find(|prompt| prompt.name == name);
                let prompt = prompt.ok_or_else(|| rpc_error(-32602, &format!("Unknown prompt: {name}")))?;
                prompt.render(&params["arguments"])?
            }
            "resources/list" if script.has_resources() => {
                let listed = script.resources.iter().filter(|resource| !resource.unlisted);
                json!({ "resources": listed.map(Resource::definition).collect::<Vec<_>>() })
            }
            "skills/list" if !script.skills.is_empty() => {
                json!({ "skills": script.skills, "ttlMs": 0, "cacheScope": "private" })
            }
            "resources/templates/list" if script.has_resources() => {
                json!({ "resourceTemplates": script.templates })
            }
            "completion/complete" if !script.prompts.is_empty() => {
                let begun = params["argument"]["value"].as_str().unwrap_or_default();
                let values = [format!("{begun}-one"), params["ref"].to_string()];
                json!({ "completion": { "values": values, "total": 2, "hasMore": false } })
            }
            "resources/read" if script.has_resources() => {
                let uri = params["uri"].as_str().unwrap_or_default();
                let code = if wire == Wire::Modern { -32602 } else { -32002 };
                let made = script.templates.iter().any(|template| {
                    let head = template["uriTemplate"].as_str().and_then(|text| text.split_once('{'));
                    head.is_some_and(|(head, _)| uri.starts_with(head))
                });
                let made =
                    made.then(|| Resource { uri: uri.into(), text: uri.into(), ..Resource::default() });
                let resource = script.resources.iter().find(|resource| resource.uri == uri);
                let resource = resource.or(made.as_ref());
                let resource =
                    resource.ok_or_else(|| rpc_error(code, &format!("Unknown resource: {uri}")))?;
                resource.contents()
            }
            _ => return Err(rpc_error(-32601, &format!("Method not found: {method}"))),
        };
        if wire == Wire::Modern {
            if method != "prompts/get" {
                result["ttlMs"] = json!(script.ttl_ms);
                result["cacheScope"] = json!("public");
            }
            result["_meta"] = json!({ SERVER_INFO_KEY: self.info() });
        }
        Ok(result)
    }

    /// Answers `tasks/*` of either era.
    fn task_request(&self, method: &str, params: &Value, wire: Wire) -> Option<Result<Value, Value>> {
        let method = method.strip_prefix("tasks/")?;
        let id = params["taskId"].as_str().unwrap_or_default();
        let mut tasks = self.tasks.lock().unwrap();
        let Some(task) = tasks.get_mut(id) else {
            return Some(Err(rpc_error(-32602, &format!("Unknown task: {id}"))));
        };
        self.log(self.script.call_log.as_deref(), &json!({ "task": method }));
        Some(Ok(match (method, wire) {
            ("result", Wire::Legacy) => task.result.clone(),
            ("cancel", wire) => {
                task.cancelled = true;
                if wire == Wire::Legacy { task_state(id, task, wire) } else { json!({}) }
            }
            ("get", wire) => {
                let state = task_state(id, task, wire);
                task.looks_left = task.looks_left.saturating_sub(1);
                state
            }
            _ => return Some(Err(rpc_error(-32601, "Method not found"))),
        }))
    }

    fn list_tools(&self, params: &Value) -> Result<Value, Value> {
        let tools = self.tools.lock().unwrap();
        let from = match params["cursor"].as_str() {
            None => 0,
            Some(cursor) => cursor
                .strip_prefix("page-")
                .and_then(|from| from.parse::<usize>().ok())
                .ok_or_else(|| rpc_error(-32602, "Invalid cursor"))?,
        };
        let size = self.script.page_size.unwrap_or(tools.len()).max(1);
        let page: Vec<_> = if self.script.page_loop {
            tools.iter().cycle().skip(from % tools.len().max(1)).take(size).map(Tool::definition).collect()
        } else {
            tools.iter().skip(from).take(size).map(Tool::definition).collect()
        };
        let mut result = json!({ "tools": page });
        if self.script.page_loop || from + size < tools.len() {
            result["nextCursor"] = json!(format!("page-{}", from + size));
        }
        Ok(result)
    }

    /// Generates and writes a flood of messages.
    pub(super) async fn flood(&self, flood: &Flood, id: &Value, out: &Out) {
        let _one_at_a_time = self.flooding.lock().await;
        let events = self.script.sse || self.script.legacy_sse;
        let (before, after) = if events { ("data: ", "\n\n") } else { ("", "\n") };
        for _ in 0..flood.times.unwrap_or(1) {
            let n = self.floods.fetch_add(1, SeqCst);
            let filled = |text: &str| text.replace("{id}", &id.to_string()).replace("{n}", &n.to_string());
            let mut bytes = format!("{before}{}", filled(&flood.head)).into_bytes();
            let mut left = flood.bytes;
            while left > 0 {
                let units = left.min(256 * 1024).div_ceil(flood.unit.len().max(1));
                bytes.extend(flood.unit.repeat(units).into_bytes());
                left = left.saturating_sub(units * flood.unit.len().max(1));
                if !out.raw(std::mem::take(&mut bytes)).await {
                    return;
                }
            }
            bytes.extend(format!("{}{after}", filled(&flood.tail)).into_bytes());
            if !out.raw(bytes).await {
                return;
            }
        }
    }

    /// Notifies all subscribers of a resource's change.
    pub(super) async fn announce_resource(&self, uri: &str, wire: Wire, out: &Out) {
        if !self.followed.lock().unwrap().contains(uri) {
            return;
        }
        let method = "notifications/resources/updated";
        if wire == Wire::Legacy {
            out.send(json!({ "jsonrpc": "2.0", "method": method, "params": { "uri": uri } })).await;
        }
        let listeners = self.listeners.lock().unwrap().clone();
        for (out, id) in listeners {
            let params = json!({ "uri": uri, "_meta": { SUBSCRIPTION_KEY: id } });
            out.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
        }
    }

    /// Notifies everyone who can receive it that the tools have changed.
    pub(super) async fn announce_tools(&self, wire: Wire, out: &Out) {
        let method = "notifications/tools/list_changed";
        if wire == Wire::Legacy {
            out.send(json!({ "jsonrpc": "2.0", "method": method })).await;
        }
        let listeners = self.listeners.lock().unwrap().clone();
        for (out, id) in listeners {
            let params = json!({ "_meta": { SUBSCRIPTION_KEY: id } });
            out.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
        }
    }
}

/// Returns a task's state in the format of its era.
pub(super) fn task_state(id: &str, task: &FakeTask, wire: Wire) -> Value {
    let mut state = json!({
        "taskId": id,
        "status": task.status(),
        "statusMessage": format!("{} looks left", task.looks_left),
        "createdAt": "2026-11-21T00:00:00Z",
        "lastUpdatedAt": "2026-11-21T00:00:00Z",
    });
    match wire {
        Wire::Legacy => {
            state["ttl"] = json!(60_000);
            state["pollInterval"] = json!(20);
        }
        Wire::Modern => {
            state["ttlMs"] = json!(60_000);
            state["pollIntervalMs"] = json!(20);
            match task.status() {
                "completed" => state["result"] = task.result.clone(),
                "failed" => state["error"] = rpc_error(-32603, "the task failed"),
                _ => {}
            }
        }
    }
    state
}
