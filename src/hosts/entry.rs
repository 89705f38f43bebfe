//! One server as a host writes it, read into what servers.toml can say. What it cannot say is told.

use std::{path::Path, time::Duration};

use serde_json::{Map, Value};

use super::{
    Host, Machine, OWN_NAME, Os, Unit, listed,
    parts::{GIVEN, Part, Parts, Reader, beginning, plain},
    secrets::{Place, mark},
    shortened,
};
use crate::config::{self, LONGEST_TIME};

/// A server, with its texts taken apart.
pub(super) struct Server {
    pub transport: Transport,
    pub enabled: bool,
    pub description: Option<Parts>,
    pub allowed_tools: Option<Vec<String>>,
    pub blocked_tools: Vec<String>,
    pub timeout: Option<Duration>,
    pub start_timeout: Option<Duration>,
}

pub(super) enum Transport {
    Program {
        command: Parts,
        args: Vec<Parts>,
        env: Vec<(String, Parts)>,
        cwd: Option<Parts>,
    },
    /// `sse` says that the host speaks the old HTTP+SSE with it.
    Address {
        url: Parts,
        headers: Vec<(String, Parts)>,
        sse: bool,
    },
}

impl Server {
    /// Every text that is for the server, with its place in the entry.
    pub fn texts(&self) -> Vec<(String, &Parts)> {
        match &self.transport {
            Transport::Program { command, args, env, cwd } => std::iter::once(("command".into(), command))
                .chain(args.iter().enumerate().map(|(index, text)| (format!("args[{index}]"), text)))
                .chain(env.iter().map(|(name, text)| (format!("env.{name}"), text)))
                .chain(cwd.iter().map(|text| ("cwd".into(), text)))
                .collect(),
            Transport::Address { url, headers, .. } => std::iter::once(("url".into(), url))
                .chain(headers.iter().map(|(name, text)| (format!("headers.{name}"), text)))
                .collect(),
        }
    }
}

/// What an entry turned out to be.
pub(super) enum Entry {
    /// A server, and what of the entry was left out.
    Server(Box<Server>, Vec<String>),
    /// Nonet itself.
    Nonet,
    /// Nothing that servers.toml could say, and why.
    Left(String),
}

/// What is known about the file that an entry stands in.
pub(super) struct Context<'a> {
    pub machine: &'a Machine,
    pub host: Option<&'static Host>,
    /// The folder of the project, if the file is a project's.
    pub folder: Option<&'a Path>,
    /// The whole file.
    pub root: &'a Value,
}

/// Keys that say nothing that servers.toml would have to know.
const IDLE: [&str; 18] = [
    "type",
    "transport",
    "transportType",
    "source",
    "name",
    "$schema",
    "gallery",
    "version",
    "icon",
    "iconUrl",
    "displayName",
    "settings",
    "remote",
    "required",
    "alwaysLoad",
    "isActive",
    "registryUrl",
    "dev",
];
/// Keys about which tools the host calls without asking. That is no list of tools to show.
const APPROVALS: [&str; 8] = [
    "autoApprove",
    "alwaysAllow",
    "autoAllow",
    "trust",
    "allowedTools",
    "default_tools_approval_mode",
    "approvals",
    "tools",
];
/// Keys about signing in.
const SIGN_IN: [&str; 9] = [
    "oauth",
    "auth",
    "authProviderType",
    "headersHelper",
    "scopes",
    "oauth_resource",
    "oauthScopes",
    "authorization_token",
    "targetAudience",
];

/// Reads one entry.
pub(super) fn read(value: &Value, context: &Context) -> Entry {
    let Some(entry) = value.as_object() else {
        return Entry::Left("the entry is no object".into());
    };
    // The host's extension starts the server; there is nothing here to start it with.
    if entry.get("source").and_then(Value::as_str) == Some("extension") && !entry.contains_key("command") {
        return Entry::Left("an extension of the host starts it; look in its README for a command".into());
    }
    let fallback = context.folder.unwrap_or(&context.machine.current);
    let input = |id: &str| description_of_input(context.root, id);
    let texts = Reader {
        bare_variables: context.host.is_some_and(|host| host.bare_variables),
        windows: context.machine.os == Os::Windows,
        folder: fallback,
        input: &input,
    };
    Reading { entry, context, texts, taken: IDLE.to_vec(), notes: Vec::new() }.server()
}

/// What VS Code shows when it asks for an input.
fn description_of_input(root: &Value, id: &str) -> Option<String> {
    let inputs = root.get("inputs").or_else(|| root.pointer("/mcp/inputs"))?.as_array()?;
    let input = inputs.iter().find(|input| input.get("id").and_then(Value::as_str) == Some(id))?;
    input.get("description")?.as_str().map(shortened)
}

struct Reading<'a> {
    entry: &'a Map<String, Value>,
    context: &'a Context<'a>,
    texts: Reader<'a>,
    /// The keys that are done with.
    taken: Vec<&'static str>,
    notes: Vec<String>,
}

impl<'a> Reading<'a> {
    fn server(mut self) -> Entry {
        // An older Zed has `command = {path, args, env}`.
        let nested = self.entry.get("command").and_then(Value::as_object);
        let inner = nested.unwrap_or(self.entry);
        let command = match nested {
            Some(command) => command.get("path").and_then(Value::as_str),
            None => self.text("command"),
        };
        self.taken.push("command");
        let url = ["url", "serverUrl", "httpUrl"].into_iter().filter_map(|key| self.text(key)).next_back();
        let kind = ["type", "transport", "transportType"].into_iter().find_map(|key| self.text(key));
        let kind = kind.unwrap_or_default().to_lowercase().replace(['-', '_', ' '], "");
        let sse = kind == "sse";
        let http = sse || matches!(kind.as_str(), "http" | "streamablehttp" | "httpstream" | "remote");
        let transport = match (command.filter(|command| !command.trim().is_empty()), url) {
            _ if !http && !matches!(kind.as_str(), "" | "stdio" | "local") => {
                Err(format!("`{}` is no transport that servers.toml knows", shortened(&kind)))
            }
            (Some(command), url) if !http || url.is_none() => {
                if is_nonet(command) {
                    return Entry::Nonet;
                }
                if url.is_some() {
                    self.notes.push("it has a command and an address; the address was left out".into());
                }
                Ok(self.program(command, inner))
            }
            (_, Some(url)) => self.address(url, sse),
            (_, None) => Err("it has neither a command nor an address".into()),
        };
        let transport = match transport {
            Ok(transport) => transport,
            Err(why) => return Entry::Left(why),
        };
        let server = Server {
            transport,
            enabled: !self.is_off(),
            description: self.text("description").map(|text| vec![Part::Plain(text.trim().into())]),
            allowed_tools: self.allowed_tools(),
            blocked_tools: self
                .names(&["disabledTools", "disabled_tools", "excludeTools"])
                .unwrap_or_default(),
            timeout: self.timeout(),
            start_timeout: self.start_timeout(),
        };
        self.tell_the_rest();
        Entry::Server(Box::new(server), self.notes)
    }

    fn program(&mut self, command: &str, entry: &'a Map<String, Value>) -> Transport {
        self.taken.extend(["args", "env", "cwd", "env_vars"]);
        let command = self.program_path(command);
        for (key, is_right) in [("args", Value::is_array as fn(&Value) -> bool), ("env", Value::is_object)] {
            if entry.get(key).is_some_and(|value| !value.is_null() && !is_right(value)) {
                self.notes.push(format!("`{key}` was left out: it is not written as hosts write it"));
            }
        }
        let mut args = Vec::new();
        let mut before: Option<String> = None;
        for value in entry.get("args").and_then(Value::as_array).into_iter().flatten() {
            let Some(text) = scalar(value) else {
                self.notes.push("an argument that is no text was left out".into());
                continue;
            };
            args.push(mark(self.texts.parts(&text), Place::Argument(before.as_deref())));
            before = Some(text);
        }
        let mut env = Vec::new();
        for (name, value) in entry.get("env").and_then(Value::as_object).into_iter().flatten() {
            let parts = match value {
                // As mcp-hub has it: handed on from where it runs.
                Value::Null if super::parts::is_variable_name(name) => {
                    Some(vec![Part::Variable { name: name.clone(), default: None }])
                }
                value => scalar(value).map(|text| mark(self.texts.parts(&text), Place::Env(name))),
            };
            let parts = parts.map(|mut parts| {
                // What a file or a command gives has no name but the variable's.
                if let [Part::Asked { id, .. }] = parts.as_mut_slice()
                    && id == GIVEN
                {
                    id.clone_from(name);
                }
                parts
            });
            match parts {
                Some(parts) if !name.is_empty() && !name.contains(['=', '\0']) => {
                    env.push((name.clone(), parts))
                }
                _ => self.notes.push(format!(
                    "the variable {} was left out: it is no name with a text",
                    listed(&[name])
                )),
            }
        }
        // Codex hands these on from where it runs.
        for name in entry.get("env_vars").and_then(Value::as_array).into_iter().flatten() {
            let name = name.as_str().or_else(|| name.get("name").and_then(Value::as_str)).unwrap_or_default();
            if super::parts::is_variable_name(name) && !env.iter().any(|(known, _)| known == name) {
                env.push((name.into(), vec![Part::Variable { name: name.into(), default: None }]));
            }
        }
        let cwd = self.text("cwd").filter(|cwd| !cwd.is_empty()).map(|cwd| self.path(cwd, "`cwd`"));
        Transport::Program { command, args, env, cwd }
    }

    fn address(&mut self, url: &str, sse: bool) -> Result<Transport, String> {
        self.taken.extend([
            "headers",
            "http_headers",
            "env_http_headers",
            "bearer_token_env_var",
            "requestInit",
        ]);
        let parts = self.texts.parts(url.trim());
        let variable = matches!(parts.first(), Some(Part::Variable { .. } | Part::Asked { .. }));
        if !variable && let Err(why) = config::http_url(&guessed(&parts)) {
            // No more of it than its scheme: there may be a password in the rest.
            let scheme = url.split_once("://").map(|(scheme, _)| format!(" ({}://...)", shortened(scheme)));
            return Err(format!("its address {why}{}", scheme.unwrap_or_default()));
        }
        let mut headers = Vec::new();
        for key in ["headers", "http_headers"] {
            for (name, value) in self.entry.get(key).and_then(Value::as_object).into_iter().flatten() {
                let parts = scalar(value).map(|text| mark(self.texts.parts(&text), Place::Header(name)));
                self.header(name, parts, &mut headers);
            }
        }
        for (name, value) in
            self.entry.get("env_http_headers").and_then(Value::as_object).into_iter().flatten()
        {
            let variable =
                value.as_str().map(|name| vec![Part::Variable { name: name.into(), default: None }]);
            self.header(name, variable, &mut headers);
        }
        if let Some(name) = self.text("bearer_token_env_var") {
            let token = Part::Variable { name: name.into(), default: None };
            self.header("Authorization", Some(vec![Part::Plain("Bearer ".into()), token]), &mut headers);
        }
        Ok(Transport::Address { url: mark(parts, Place::Url), headers, sse })
    }

    /// One header that servers.toml does not take would cost the whole server.
    fn header(&mut self, name: &str, value: Option<Parts>, headers: &mut Vec<(String, Parts)>) {
        let sendable = |part: &Part| match part {
            Part::Plain(text) | Part::Secret { value: text, .. } => config::header_value(text).is_ok(),
            Part::Variable { name, .. } => super::parts::is_variable_name(name),
            Part::Asked { .. } | Part::Keyring(_) => true,
        };
        let value = value.filter(|parts| parts.iter().all(sendable));
        let why = match (config::header_name(name), value) {
            (Ok(()), Some(value)) => {
                headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
                return headers.push((name.into(), value));
            }
            (Err(why), _) => why,
            (Ok(()), None) => "has a value that cannot be sent".into(),
        };
        self.notes.push(format!("the header {} was left out: it {why}", listed(&[name])));
    }

    /// A program that is not looked for in PATH is relative to where the host runs it.
    fn program_path(&mut self, command: &str) -> Parts {
        if command.contains(['/', '\\']) {
            return self.path(command, "the command");
        }
        self.texts.parts(command)
    }

    fn path(&mut self, path: &str, what: &str) -> Parts {
        let mut parts = self.texts.parts(path);
        let start = beginning(&parts);
        let drive = start.as_bytes().get(1) == Some(&b':');
        let whole = drive || start.is_empty() || start.starts_with(['/', '\\', '~']);
        if !whole && let Some(folder) = self.context.folder {
            let mut resolved = Parts::new();
            plain(&mut resolved, &format!("{}/", folder.display().to_string().trim_end_matches('/')));
            plain(&mut resolved, start.strip_prefix("./").unwrap_or(start));
            resolved.extend(parts.drain(1..));
            return resolved;
        }
        if !whole {
            self.notes.push(format!("{what} is a relative path; from now on it is relative to servers.toml"));
        }
        parts
    }

    fn is_off(&mut self) -> bool {
        self.taken.extend(["disabled", "enabled"]);
        let is = |key: &str, truth: bool| self.entry.get(key) == Some(&Value::Bool(truth));
        is("disabled", true) || is("enabled", false) || is("isActive", false)
    }

    /// The tools that the host shows. An empty list means none in Codex, and nothing elsewhere.
    fn allowed_tools(&mut self) -> Option<Vec<String>> {
        let strict = self.entry.contains_key("enabled_tools");
        // Copilot's `tools` is such a list; Codex's is a table about approvals.
        let keys: &[&'static str] = match self.entry.get("tools") {
            Some(Value::Array(_)) => &["enabledTools", "enabled_tools", "includeTools", "tools"],
            _ => &["enabledTools", "enabled_tools", "includeTools"],
        };
        let names = self.names(keys)?;
        (!names.iter().any(|name| name == "*") && (strict || !names.is_empty())).then_some(names)
    }

    fn names(&mut self, keys: &[&'static str]) -> Option<Vec<String>> {
        self.taken.extend(keys);
        let lists: Vec<_> = keys.iter().filter_map(|key| self.entry.get(*key)?.as_array()).collect();
        let names = lists.iter().flat_map(|list| list.iter()).filter_map(Value::as_str).map(Into::into);
        (!lists.is_empty()).then(|| names.collect())
    }

    fn timeout(&mut self) -> Option<Duration> {
        self.taken.extend(["timeout", "tool_timeout_sec"]);
        let unit = self.context.host.map_or(Unit::Guess, |host| host.timeout);
        let plain = self.entry.get("timeout");
        let number = plain.and_then(Value::as_f64);
        let milliseconds = match (unit, number) {
            (Unit::Milliseconds, _) => true,
            (Unit::Guess, Some(number)) => number >= 1000.0,
            // Ten minutes is the longest that Zed takes; it once counted milliseconds.
            (Unit::Seconds, Some(number)) => number > 600.0,
            (_, None) => false,
        };
        let written = plain.and_then(Value::as_str).and_then(|text| humantime::parse_duration(text).ok());
        let seconds = number.map(|number| if milliseconds { number / 1000.0 } else { number });
        let seconds = self.entry.get("tool_timeout_sec").and_then(Value::as_f64).or(seconds);
        self.time("timeout", seconds.or(written.map(|time| time.as_secs_f64())))
    }

    fn start_timeout(&mut self) -> Option<Duration> {
        self.taken.extend(["startup_timeout_sec", "startup_timeout_ms"]);
        let milliseconds = self.entry.get("startup_timeout_ms").and_then(Value::as_f64).map(|ms| ms / 1000.0);
        let seconds = self.entry.get("startup_timeout_sec").and_then(Value::as_f64).or(milliseconds);
        self.time("startup timeout", seconds)
    }

    fn time(&mut self, what: &str, seconds: Option<f64>) -> Option<Duration> {
        let seconds = seconds?;
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= LONGEST_TIME);
        // Whole milliseconds, so that it reads well.
        let time =
            time.map(|time| Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or_default()));
        let time = time.filter(|time| !time.is_zero());
        if time.is_none() {
            self.notes
                .push(format!("its {what} was left out: {seconds} s is no time that servers.toml takes"));
        }
        time
    }

    fn tell_the_rest(&mut self) {
        let left = |keys: &[&str]| -> Vec<String> {
            let has = |key: &&&str| self.entry.contains_key(**key) && !self.taken.contains(*key);
            keys.iter().filter(has).map(ToString::to_string).collect()
        };
        let (approvals, sign_in) = (left(&APPROVALS), left(&SIGN_IN));
        let (env_file, sandbox) = (left(&["envFile", "env_file"]), left(&["sandbox", "sandboxEnabled"]));
        let told: Vec<_> =
            [&approvals, &sign_in, &env_file, &sandbox].into_iter().flatten().cloned().collect();
        let known = |key: &&String| self.taken.contains(&key.as_str()) || told.contains(key);
        let rest: Vec<_> = self.entry.keys().filter(|key| !known(key)).cloned().collect();
        let written = Value::Object(self.entry.clone()).to_string();
        if ["${workspaceFolder", "${workspaceRoot}", "${cwd}"].iter().any(|name| written.contains(name)) {
            self.notes
                .push(format!("the folder of the project was taken to be {}", self.texts.folder.display()));
        }
        let mut tell = |keys: &[String], why: &str| {
            if !keys.is_empty() {
                self.notes.push(format!("{} left out: {why}", listed(keys)));
            }
        };
        tell(&approvals, "which tools need no question is the host's own; here `policy` says which need one");
        tell(
            &sign_in,
            "Nonet cannot sign in with OAuth yet, so the server may refuse it; a token in `headers` works",
        );
        tell(&env_file, "put the variables of that file into Nonet's environment, or into `env`");
        tell(&sandbox, "Nonet starts servers without a sandbox");
        tell(&rest, "servers.toml has nothing like it");
    }

    fn text(&mut self, key: &'static str) -> Option<&'a str> {
        self.taken.push(key);
        self.entry.get(key)?.as_str()
    }
}

/// Whether a command is Nonet.
pub(super) fn is_nonet(command: &str) -> bool {
    let name = command.trim().rsplit(['/', '\\']).next().unwrap_or_default().to_lowercase();
    name.strip_suffix(".exe").unwrap_or(&name) == OWN_NAME
}

/// The text that the parts may come to. What is not known could stand anywhere in an address as a digit.
fn guessed(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Plain(text) | Part::Secret { value: text, .. } => text.clone(),
        _ => "1".into(),
    };
    parts.iter().map(text).collect()
}

/// Texts, and what is one for a program: numbers and truths.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// The values of an entry that look like secrets, so that they can be kept out of what is shown.
pub(super) fn secrets(value: &Value, machine: &Machine) -> Vec<String> {
    let context = Context { machine, host: None, folder: None, root: &Value::Null };
    let Entry::Server(server, _) = read(value, &context) else { return Vec::new() };
    let texts = server.texts().into_iter().flat_map(|(_, parts)| parts.clone());
    let secret = |part| match part {
        Part::Secret { value, .. } => Some(value),
        _ => None,
    };
    texts.filter_map(secret).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::SystemTime};

    use serde_json::json;

    use super::*;
    use crate::hosts::{find, parts::as_plain};

    fn brief(server: &Server) -> String {
        match &server.transport {
            Transport::Program { command, args, .. } => {
                format!("{} {}", as_plain(command).unwrap_or("?"), args.len())
            }
            Transport::Address { url, sse, .. } => {
                format!("{}{}", as_plain(url).unwrap_or("?"), if *sse { " sse" } else { "" })
            }
        }
    }

    fn check(host: Option<&str>, entry: Value, expected: &str) {
        let machine = Machine {
            os: Os::Linux,
            home: "/home/me".into(),
            current: "/work".into(),
            env: BTreeMap::new(),
            now: SystemTime::UNIX_EPOCH,
        };
        let host = host.map(|name| find(name).unwrap());
        let context = Context { machine: &machine, host, folder: None, root: &Value::Null };
        let shown = match read(&entry, &context) {
            Entry::Nonet => "nonet".into(),
            Entry::Left(why) => format!("left: {why}"),
            Entry::Server(server, notes) => {
                let off = if server.enabled { "" } else { ", off" };
                let time =
                    |time: Option<Duration>| time.map(|time| format!(", {time:?}")).unwrap_or_default();
                let allowed = server
                    .allowed_tools
                    .as_ref()
                    .map(|tools| format!(", only {tools:?}"))
                    .unwrap_or_default();
                let blocked = if server.blocked_tools.is_empty() {
                    String::new()
                } else {
                    format!(", not {:?}", server.blocked_tools)
                };
                let times = time(server.timeout) + &time(server.start_timeout);
                let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
                format!("{}{off}{times}{allowed}{blocked}{notes}", brief(&server))
            }
        };
        assert!(shown.starts_with(expected), "{entry}: {shown}");
    }

    #[test]
    fn entries_of_every_host_are_read() {
        check(None, json!({"command": "npx", "args": ["-y", "x"]}), "npx 2");
        check(None, json!({"type": "stdio", "command": "uvx", "args": ["x", 5]}), "uvx 2");
        check(
            None,
            json!({"command": {"path": "/bin/x", "args": ["a"], "env": {}}, "settings": {}}),
            "/bin/x 1",
        );
        check(None, json!({"type": "http", "url": "https://h/mcp"}), "https://h/mcp");
        check(None, json!({"type": "streamableHttp", "url": "https://h/sse"}), "https://h/sse");
        check(None, json!({"type": "sse", "url": "https://h/x"}), "https://h/x sse");
        check(None, json!({"url": "https://h/v1/sse/"}), "https://h/v1/sse/");
        check(None, json!({"serverUrl": "https://h/mcp"}), "https://h/mcp");
        check(None, json!({"url": "https://h/sse", "httpUrl": "https://h/mcp"}), "https://h/mcp");
        check(None, json!({"command": "x", "disabled": true}), "x 0, off");
        check(
            None,
            json!({"command": "x", "enabled": false, "disabledTools": ["a"]}),
            "x 0, off, not [\"a\"]",
        );
        check(
            Some("gemini-cli"),
            json!({"command": "x", "includeTools": ["a"], "excludeTools": ["b"], "timeout": 5000}),
            "x 0, 5s, only [\"a\"], not [\"b\"]",
        );
        check(
            Some("codex"),
            json!({"command": "x", "startup_timeout_sec": 20, "tool_timeout_sec": 90.5, "enabled_tools": []}),
            "x 0, 90.5s, 20s, only []",
        );
        check(Some("codex"), json!({"command": "x", "startup_timeout_ms": 1500}), "x 0, 1.5s");
        check(Some("zed"), json!({"command": "x", "timeout": 90}), "x 0, 90s");
        check(Some("claude-code"), json!({"command": "x", "timeout": 600}), "x 0, 600ms");
        check(None, json!({"command": "x", "timeout": 60}), "x 0, 60s");
        check(None, json!({"command": "x", "timeout": -1}), "x 0; its timeout was left out");
        check(None, json!({"command": "x", "tools": ["*"]}), "x 0");
        check(None, json!({"command": "x", "tools": ["a"]}), "x 0, only [\"a\"]");
    }

    #[test]
    fn what_cannot_be_carried_over_is_told() {
        check(None, json!({"type": "sse"}), "left: it has neither");
        check(None, json!({"type": "ws", "url": "ws://h"}), "left: `ws` is no transport");
        check(
            None,
            json!({"url": "unix:///run/x.sock"}),
            "left: its address is not an http:// or https:// address (unix://...)",
        );
        check(None, json!({"url": "https://"}), "left: its address is no address");
        check(None, json!({"url": "https://h/a b"}), "left: its address is no address");
        check(None, json!({"url": "https://h:${PORT}/mcp"}), "?");
        check(None, json!({}), "left: it has neither");
        check(None, json!({"command": ""}), "left: it has neither");
        check(None, json!("npx"), "left: the entry is no object");
        check(None, json!({"command": "x", "args": "a b"}), "x 0; `args` was left out");
        check(None, json!({"command": "x", "env": {"a-b": null}}), "x 0; the variable `a-b` was left out");
        check(None, json!({"type": "http", "command": "x"}), "x 0");
        check(None, json!({"source": "extension", "settings": {}}), "left: an extension");
        check(
            None,
            json!({"command": "x", "autoApprove": ["a"], "weird": 1}),
            "x 0; `autoApprove` left out: which tools need no question is the host's own; here `policy` says which need one; `weird` left out",
        );
        check(
            None,
            json!({"url": "https://h", "headers": {"Content-Type": "x", "a b": "c", "ok": "é"}}),
            "https://h; the header `Content-Type` was left out: it is a header that Nonet sets itself; the header `a b` was left out: it cannot be",
        );
        for nonet in ["nonet", "/usr/bin/nonet", "C:\\bin\\Nonet.exe", "${HOME}/nonet"] {
            check(None, json!({"command": nonet}), "nonet");
        }
        check(None, json!({"command": "nonet-helper"}), "nonet-helper 0");
    }
}
