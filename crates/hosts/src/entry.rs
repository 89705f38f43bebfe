//! Reads one server from a host's entry. Settings without an equivalent in servers.toml are reported.

mod dialects;
mod own;
mod reach;

use std::{path::Path, time::Duration};

use nonet_config::LONGEST_TIME;
use serde_json::{Map, Value};

use super::{
    Host, Machine, OWN_NAME, Os, Unit,
    launchers::program_of,
    listed,
    parts::{AskedInput, TextPart, TextParts, TextReader, as_plain, secrets_in},
    rules::{RuleEffect, ToolNames, ToolRule},
    shortened,
};
pub(super) use own::of_servers_toml;

/// A server, with its texts split into parts.
#[derive(Default)]
pub(super) struct HostServer {
    /// How the server is reached, by the keys of servers.toml; empty if its other keys say that.
    pub connection: Vec<(&'static str, EntryText)>,
    pub enabled: bool,
    pub description: Option<TextParts>,
    /// The client's own rules for its tools.
    pub rules: Vec<ToolRule>,
    /// A rule that servers.toml cannot express: the reason not to add the server.
    pub unmapped: Option<String>,
    pub timeout: Option<Duration>,
    pub start_timeout: Option<Duration>,
    /// A setting that Nonet cannot provide: the reason to leave the server with the host.
    pub lost: Option<String>,
    /// Other keys of servers.toml, ready to be written.
    pub more: Map<String, Value>,
}

/// A value with texts.
pub(super) enum EntryText {
    One(TextParts),
    List(Vec<TextParts>),
    Named(Vec<(String, TextParts)>),
}

impl EntryText {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::One(_) => false,
            Self::List(texts) => texts.is_empty(),
            Self::Named(texts) => texts.is_empty(),
        }
    }

    /// Returns the texts, each with its place.
    fn placed(&self, key: &str) -> Vec<(String, &TextParts)> {
        match self {
            Self::One(text) => vec![(key.into(), text)],
            Self::List(texts) => {
                texts.iter().enumerate().map(|(index, text)| (format!("{key}[{index}]"), text)).collect()
            }
            Self::Named(texts) => texts.iter().map(|(name, text)| (format!("{key}.{name}"), text)).collect(),
        }
    }

    pub(crate) fn texts_mut(&mut self) -> Vec<&mut TextParts> {
        match self {
            Self::One(text) => vec![text],
            Self::List(texts) => texts.iter_mut().collect(),
            Self::Named(texts) => texts.iter_mut().map(|(_, text)| text).collect(),
        }
    }
}

impl HostServer {
    /// Returns every text meant for the server, with its place in the entry.
    pub(crate) fn texts(&self) -> Vec<(String, &TextParts)> {
        self.connection.iter().flat_map(|(key, texts)| texts.placed(key)).collect()
    }

    /// Returns what a key says about how the server is reached.
    pub(crate) fn connected_by(&self, key: &str) -> Option<&EntryText> {
        self.connection.iter().find(|(known, _)| *known == key).map(|(_, texts)| texts)
    }

    /// Returns the program to start, if known.
    pub(crate) fn command(&self) -> Option<&str> {
        match self.connected_by("command")? {
            EntryText::One(command) => as_plain(command),
            _ => None,
        }
    }

    /// Returns the values that look like secrets.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &String> {
        self.texts().into_iter().flat_map(|(_, parts)| secrets_in(parts))
    }
}

/// What an entry is.
pub(super) enum HostEntry {
    /// A server, and notes on omitted settings.
    Server(Box<HostServer>, Vec<String>),
    /// Nonet itself.
    Nonet,
    /// Not expressible in servers.toml, for this reason.
    Left(String),
}

/// The file that contains an entry.
pub(super) struct Context<'a> {
    pub machine: &'a Machine,
    pub host: Option<&'static Host>,
    pub file: &'a Path,
    /// The project's folder, for a project's file.
    pub folder: Option<&'a Path>,
    /// The whole file.
    pub root: &'a Value,
}

/// Keys without use in servers.toml.
const IDLE: [&str; 21] = [
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
    "bundled",
    "display_name",
    "start_on_launch",
];
/// Keys of tools that the host calls without approval. They are not a list of visible tools.
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
/// The beginnings of variables for the folder of a project.
const FOLDERS: [&str; 3] = ["${workspaceFolder", "${workspaceRoot", "${cwd"];
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
pub(super) fn read(value: &Value, context: &Context) -> HostEntry {
    let Some(entry) = value.as_object() else {
        return HostEntry::Left("the entry is not an object".into());
    };
    // The host's extension starts the server; Nonet has no command for it.
    if entry.get("source").and_then(Value::as_str) == Some("extension") && !entry.contains_key("command") {
        return HostEntry::Left(
            "an extension of the client starts this server; look for a command in its README".into(),
        );
    }
    let fallback = context.folder.unwrap_or(&context.machine.current);
    let input = |id: &str| asked_input(context.root, id);
    let texts = TextReader {
        bare_variables: context.host.is_some_and(|host| host.bare_variables),
        windows: context.machine.os == Os::Windows,
        folder: fallback,
        input: &input,
    };
    let common = dialects::common(entry);
    EntryReader { entry: &common, context, texts, taken: IDLE.to_vec(), notes: Vec::new() }.server()
}

/// Returns VS Code's prompt for an input, and its default.
fn asked_input(root: &Value, id: &str) -> AskedInput {
    let Some(input) = inputs(root).and_then(|inputs| input(inputs, id)) else { return AskedInput::default() };
    let text = |key: &str| input.get(key).and_then(Value::as_str);
    let is_secret = input.get("password") == Some(&Value::Bool(true));
    // `${NAME:-default}` cannot hold these.
    let is_writable = |text: &&str| !text.is_empty() && !text.contains(['{', '}', '$']);
    let default = text("default").filter(is_writable).filter(|_| !is_secret).map(Into::into);
    AskedInput { prompt: text("description").map(shortened), default }
}

fn inputs(root: &Value) -> Option<&Vec<Value>> {
    root.get("inputs").or_else(|| root.pointer("/mcp/inputs"))?.as_array()
}

fn input<'v>(inputs: &'v [Value], id: &str) -> Option<&'v Value> {
    inputs.iter().find(|input| input.get("id").and_then(Value::as_str) == Some(id))
}

/// Returns why an entry works only in its client: it has a value that only the client knows.
pub(super) fn assumption(entry: &Value, context: &Context) -> Option<String> {
    let written = entry.to_string();
    if context.folder.is_none()
        && let Some(name) = FOLDERS.iter().find(|name| written.contains(**name))
    {
        return Some(format!(
            "it uses `{name}}}`, which is another folder in each project; to move the server, write the folder itself"
        ));
    }
    let other = ["${config:", "${file}", "${fileDirname}", "${relativeFile}"];
    if let Some(name) = other.iter().find(|name| written.contains(**name)) {
        let name = name.trim_end_matches(['}', ':']);
        return Some(format!("it uses `{name}}}`, which only the client knows"));
    }
    // A file without any inputs asks for them elsewhere.
    let inputs = inputs(context.root)?;
    let ids = written.split("${input:").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let is_unknown = |id: &&str| {
        input(inputs, id).is_none_or(|input| input.get("type").is_some_and(|kind| kind == "command"))
    };
    let id = ids.into_iter().find(is_unknown)?;
    Some(format!("it uses `${{input:{}}}`, which only the client can find out", shortened(id)))
}

struct EntryReader<'a> {
    entry: &'a Map<String, Value>,
    context: &'a Context<'a>,
    texts: TextReader<'a>,
    /// The keys already handled.
    taken: Vec<&'static str>,
    notes: Vec<String>,
}

impl<'a> EntryReader<'a> {
    fn server(mut self) -> HostEntry {
        // Older Zed versions have `command = {path, args, env}`.
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
        let connection = match (command.filter(|command| !command.trim().is_empty()), url) {
            _ if !http && !matches!(kind.as_str(), "" | "stdio" | "local") => {
                Err(format!("servers.toml does not support the transport `{}`", shortened(&kind)))
            }
            (Some(command), url) if !http || url.is_none() => {
                if is_nonet(command) || fetches_nonet(command, inner) {
                    return HostEntry::Nonet;
                }
                if url.is_some() {
                    self.notes
                        .push("the entry has a command and an address; the address was left out".into());
                }
                Ok(self.program(command, inner))
            }
            (_, Some(url)) => self.address(url, sse),
            (_, None) => Err("the entry has neither a command nor an address".into()),
        };
        let connection = match connection {
            Ok(connection) => connection,
            Err(why) => return HostEntry::Left(why),
        };
        let (rules, unmapped) = self.rules();
        let mut server = HostServer {
            connection,
            enabled: !self.is_off(),
            description: self.text("description").map(|text| vec![TextPart::Plain(text.trim().into())]),
            rules,
            unmapped,
            timeout: self.timeout(),
            start_timeout: self.start_timeout(),
            ..HostServer::default()
        };
        server.lost = self.tell_the_rest();
        HostEntry::Server(Box::new(server), self.notes)
    }

    fn is_off(&mut self) -> bool {
        self.taken.extend(["disabled", "enabled"]);
        let is = |key: &str, truth: bool| self.entry.get(key) == Some(&Value::Bool(truth));
        is("disabled", true) || is("enabled", false) || is("isActive", false)
    }

    /// Returns the rules for tools that the entry itself has, and why the server must stay with the client.
    fn rules(&mut self) -> (Vec<ToolRule>, Option<String>) {
        let file = self.context.file;
        let (mut rules, mut unmapped) = (Vec::new(), None);
        // An empty list means no tool in Codex; elsewhere it means no restriction.
        let strict = self.entry.contains_key("enabled_tools");
        // Copilot's `tools` is such a list; Codex's is a table about approvals.
        let keys: &[&'static str] = match self.entry.get("tools") {
            Some(Value::Array(_)) => &["enabledTools", "enabled_tools", "includeTools", "tools"],
            _ => &["enabledTools", "enabled_tools", "includeTools"],
        };
        if let Some((key, names)) = self.names(keys)
            && !names.iter().any(|name| name == "*")
            && (strict || !names.is_empty())
        {
            rules.push(ToolRule::of_entry(RuleEffect::Only, key, &names, file));
        }
        let hidden = self.names(&["disabledTools", "disabled_tools", "excludeTools"]);
        for (key, names) in hidden.into_iter().filter(|(_, names)| !names.is_empty()) {
            if let Some(name) = names.iter().find(|name| name.contains('(')) {
                let name = shortened(name);
                unmapped = Some(format!("its rule `{key}: {name}` depends on params, which a policy cannot"));
            }
            rules.push(ToolRule::of_entry(RuleEffect::Hide, key, &names, file));
        }
        self.approvals(&mut rules);
        (rules, unmapped)
    }

    /// Adds Codex's rules about approvals. `approve` needs no rule: the tool runs without a question.
    fn approvals(&mut self, rules: &mut Vec<ToolRule>) {
        let file = self.context.file;
        let default = "default_tools_approval_mode";
        // Other modes than these two ask, at least about some calls.
        let is_asked = |mode: Option<&Value>| mode.is_some_and(|mode| mode != "auto" && mode != "approve");
        let asks = is_asked(self.entry.get(default));
        let mut add = |effect: RuleEffect, tool: ToolNames, written: String| {
            rules.push(ToolRule { effect, tools: vec![tool], written, file: file.into() });
        };
        if asks {
            self.taken.push(default);
            let mode = self.entry.get(default).and_then(Value::as_str).unwrap_or_default();
            add(RuleEffect::Ask, ToolNames::every(), format!("{default}: {}", shortened(mode)));
        }
        let Some(tools) = self.entry.get("tools").and_then(Value::as_object) else { return };
        let mut is_read = true;
        for (tool, settings) in tools {
            let mode = settings.get("approval_mode");
            if settings.get("enabled") == Some(&Value::Bool(false)) {
                add(RuleEffect::Hide, ToolNames::exact(tool), format!("tools.{tool}.enabled: false"));
            } else if is_asked(mode) {
                let mode = shortened(mode.and_then(Value::as_str).unwrap_or_default());
                add(RuleEffect::Ask, ToolNames::exact(tool), format!("tools.{tool}.approval_mode: {mode}"));
            } else if asks && mode.is_some() {
                let name = shortened(tool);
                self.notes.push(format!(
                    "`tools.{name}.approval_mode` is not carried over: Nonet asks for every tool"
                ));
            } else {
                is_read = false;
            }
        }
        if is_read {
            self.taken.push("tools");
        }
    }

    /// Returns the names under the first of these keys and its like.
    fn names(&mut self, keys: &[&'static str]) -> Option<(&'static str, Vec<String>)> {
        self.taken.extend(keys);
        let lists = keys.iter().filter_map(|key| Some((*key, self.entry.get(*key)?.as_array()?)));
        let lists: Vec<(&'static str, &Vec<Value>)> = lists.collect();
        let names = lists.iter().flat_map(|(_, list)| list.iter()).filter_map(Value::as_str).map(Into::into);
        Some((lists.first()?.0, names.collect()))
    }

    fn timeout(&mut self) -> Option<Duration> {
        self.taken.extend(["timeout", "tool_timeout_sec"]);
        let unit = self.context.host.map_or(Unit::Guess, |host| host.timeout);
        let plain = self.entry.get("timeout");
        let number = plain.and_then(Value::as_f64);
        let milliseconds = match (unit, number) {
            (Unit::Milliseconds, _) => true,
            (Unit::Guess, Some(number)) => number >= 1000.0,
            (Unit::SecondsUpTo(longest), Some(number)) => number > f64::from(longest),
            (Unit::Seconds, _) | (_, None) => false,
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
        // In whole milliseconds, for readability.
        let time =
            time.map(|time| Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or_default()));
        let time = time.filter(|time| !time.is_zero());
        if time.is_none() {
            self.notes.push(format!("its {what} was left out: servers.toml does not accept {seconds} s"));
        }
        time
    }

    /// Notes the omitted keys. Returns a loss that may keep the server from working as before.
    fn tell_the_rest(&mut self) -> Option<String> {
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
        if FOLDERS.iter().any(|name| written.contains(name)) {
            self.notes
                .push(format!("its project folder is {}, in every client", self.texts.folder.display()));
        }
        let mut tell = |keys: &[String], why: &str| {
            if !keys.is_empty() {
                self.notes.push(format!("{} left out: {why}", listed(keys)));
            }
        };
        tell(&approvals, "the client decides which tools need no approval; in servers.toml `policy` decides");
        tell(
            &sign_in,
            "sign in to the server with `nonet login`; put a manually registered client into the server's `oauth`",
        );
        tell(&env_file, "put the variables of that file into Nonet's environment or into `env`");
        tell(&sandbox, "Nonet starts servers without a sandbox");
        tell(&rest, "servers.toml has no equivalent");
        let is_used = |key: &&String| {
            let empty = [Value::Null, Value::Bool(false), Value::from("")];
            self.entry.get(*key).is_some_and(|value| !empty.contains(value))
        };
        let used = |keys: &[String]| keys.iter().filter(is_used).cloned().collect::<Vec<_>>();
        let (env_file, sandbox) = (used(&env_file), used(&sandbox));
        if !env_file.is_empty() {
            let name = listed(&env_file);
            return Some(format!("Nonet does not read {name}; put those variables into the server's `env`"));
        }
        (!sandbox.is_empty()).then(|| format!("Nonet would start the server without {}", listed(&sandbox)))
    }

    fn text(&mut self, key: &'static str) -> Option<&'a str> {
        self.taken.push(key);
        self.entry.get(key)?.as_str()
    }
}

/// Whether a command is Nonet.
pub(super) fn is_nonet(command: &str) -> bool {
    program_of(command) == OWN_NAME
}

/// Whether an entry fetches Nonet and starts it: `npx -y nonet`, `uvx nonet@latest`.
fn fetches_nonet(command: &str, entry: &Map<String, Value>) -> bool {
    let args = entry.get("args").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    // The first word that is neither an option nor a launcher is the package.
    let launchers = ["npx", "uvx", "bunx", "pnpm", "pipx", "cmd"];
    let others = ["/c", "dlx", "run", "exec", "x"];
    let is_word = |arg: &&str| !arg.starts_with('-') && !launchers.contains(arg) && !others.contains(arg);
    let package = args.into_iter().find(is_word).unwrap_or_default();
    launchers.contains(&&*program_of(command)) && package.split('@').next() == Some(OWN_NAME)
}

/// Returns the values of an entry that look like secrets, for masking.
pub(super) fn secrets(value: &Value, machine: &Machine) -> Vec<String> {
    let context = Context { machine, host: None, file: Path::new(""), folder: None, root: &Value::Null };
    let HostEntry::Server(server, _) = read(value, &context) else { return Vec::new() };
    server.secrets().cloned().collect()
}

#[cfg(test)]
mod tests;
