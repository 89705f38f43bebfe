//! How an entry's server is reached: as a program or at an address.

use nonet_config as config;
use serde_json::{Map, Value};

use super::{
    super::{
        listed,
        parts::{GIVEN, TextPart, TextParts, beginning, is_variable_name, plain},
        secrets::{TextPlace, mark},
        shortened,
    },
    EntryReader, EntryText,
};

/// How a server is reached, by the keys of servers.toml.
type Connection = Vec<(&'static str, EntryText)>;

impl<'a> EntryReader<'a> {
    pub(super) fn program(&mut self, command: &str, entry: &'a Map<String, Value>) -> Connection {
        self.taken.extend(["args", "env", "cwd", "env_vars"]);
        let command = self.program_path(command);
        for (key, is_right) in [("args", Value::is_array as fn(&Value) -> bool), ("env", Value::is_object)] {
            if entry.get(key).is_some_and(|value| !value.is_null() && !is_right(value)) {
                self.notes.push(format!("`{key}` was left out: it has the wrong type"));
            }
        }
        let mut args = Vec::new();
        let mut before: Option<String> = None;
        for value in entry.get("args").and_then(Value::as_array).into_iter().flatten() {
            let Some(text) = scalar(value) else {
                self.notes.push("an argument that is not a string was left out".into());
                continue;
            };
            args.push(mark(self.texts.parts(&text), TextPlace::Argument(before.as_deref())));
            before = Some(text);
        }
        let mut env = Vec::new();
        for (name, value) in entry.get("env").and_then(Value::as_object).into_iter().flatten() {
            let parts = match value {
                // As in mcp-hub: inherited from its own environment.
                Value::Null if is_variable_name(name) => {
                    Some(vec![TextPart::Variable { name: name.clone(), default: None }])
                }
                value => scalar(value).map(|text| mark(self.texts.parts(&text), TextPlace::Env(name))),
            };
            let parts = parts.map(|mut parts| {
                // A value from a file or a command has no name but the variable's.
                if let [TextPart::Asked { id, .. }] = parts.as_mut_slice()
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
                    "the variable {} was left out: its name or value is invalid",
                    listed(&[name])
                )),
            }
        }
        // Codex passes these on from its own environment.
        for name in entry.get("env_vars").and_then(Value::as_array).into_iter().flatten() {
            let name = name.as_str().or_else(|| name.get("name").and_then(Value::as_str)).unwrap_or_default();
            if is_variable_name(name) && !env.iter().any(|(known, _)| known == name) {
                env.push((name.into(), vec![TextPart::Variable { name: name.into(), default: None }]));
            }
        }
        let cwd = self.text("cwd").filter(|cwd| !cwd.is_empty()).map(|cwd| self.path(cwd, "`cwd`"));
        let mut connection = vec![
            ("command", EntryText::One(command)),
            ("args", EntryText::List(args)),
            ("env", EntryText::Named(env)),
        ];
        connection.extend(cwd.map(|cwd| ("cwd", EntryText::One(cwd))));
        connection
    }

    pub(super) fn address(&mut self, url: &str, sse: bool) -> Result<Connection, String> {
        self.taken.extend([
            "headers",
            "http_headers",
            "env_http_headers",
            "bearer_token_env_var",
            "requestInit",
        ]);
        let parts = self.texts.parts(url.trim());
        let variable = matches!(parts.first(), Some(TextPart::Variable { .. } | TextPart::Asked { .. }));
        if !variable && let Err(why) = config::http_url(&guessed(&parts)) {
            // Shows only the scheme: the rest may contain a password.
            let scheme = url.split_once("://").map(|(scheme, _)| format!(" ({}://...)", shortened(scheme)));
            return Err(format!("its address {why}{}", scheme.unwrap_or_default()));
        }
        let mut headers = Vec::new();
        for key in ["headers", "http_headers"] {
            for (name, value) in self.entry.get(key).and_then(Value::as_object).into_iter().flatten() {
                let parts = scalar(value).map(|text| mark(self.texts.parts(&text), TextPlace::Header(name)));
                self.header(name, parts, &mut headers);
            }
        }
        for (name, value) in
            self.entry.get("env_http_headers").and_then(Value::as_object).into_iter().flatten()
        {
            let variable =
                value.as_str().map(|name| vec![TextPart::Variable { name: name.into(), default: None }]);
            self.header(name, variable, &mut headers);
        }
        if let Some(name) = self.text("bearer_token_env_var") {
            let token = TextPart::Variable { name: name.into(), default: None };
            self.header("Authorization", Some(vec![TextPart::Plain("Bearer ".into()), token]), &mut headers);
        }
        let transport = vec![TextPart::Plain("sse".into())];
        let mut connection: Connection =
            if sse { vec![("transport", EntryText::One(transport))] } else { Vec::new() };
        connection.push(("url", EntryText::One(mark(parts, TextPlace::Url))));
        connection.push(("headers", EntryText::Named(headers)));
        Ok(connection)
    }

    /// Adds a header, or notes why not: a single invalid header would invalidate the whole server.
    fn header(&mut self, name: &str, value: Option<TextParts>, headers: &mut Vec<(String, TextParts)>) {
        let sendable = |part: &TextPart| match part {
            TextPart::Plain(text) | TextPart::Secret { value: text, .. } => {
                config::header_value(text).is_ok()
            }
            TextPart::Variable { name, .. } => is_variable_name(name),
            TextPart::Asked { .. } | TextPart::Keyring(_) | TextPart::Program(_) => true,
        };
        let value = value.filter(|parts| parts.iter().all(sendable));
        let why = match (config::header_name(name), value) {
            (Ok(()), Some(value)) => {
                headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
                return headers.push((name.into(), value));
            }
            (Err(why), _) => why,
            (Ok(()), None) => "has an invalid value".into(),
        };
        self.notes.push(format!("the header {} was left out: it {why}", listed(&[name])));
    }

    /// Resolves a program's path: unless looked up in PATH, it is relative to the host's working directory.
    fn program_path(&mut self, command: &str) -> TextParts {
        if command.contains(['/', '\\']) {
            return self.path(command, "the command");
        }
        self.texts.parts(command)
    }

    fn path(&mut self, path: &str, what: &str) -> TextParts {
        let mut parts = self.texts.parts(path);
        let start = beginning(&parts);
        let drive = start.as_bytes().get(1) == Some(&b':');
        let whole = drive || start.is_empty() || start.starts_with(['/', '\\', '~']);
        if !whole && let Some(folder) = self.context.folder {
            let mut resolved = TextParts::new();
            plain(&mut resolved, &format!("{}/", folder.display().to_string().trim_end_matches('/')));
            plain(&mut resolved, start.strip_prefix("./").unwrap_or(start));
            resolved.extend(parts.drain(1..));
            return resolved;
        }
        if !whole {
            self.notes.push(format!(
                "{what} is a relative path; in servers.toml the path is relative to that file"
            ));
        }
        parts
    }
}

/// Returns a possible value of the parts. Replaces unknown parts with a digit, which is valid anywhere in an
/// address.
fn guessed(parts: &[TextPart]) -> String {
    let text = |part: &TextPart| match part {
        TextPart::Plain(text) | TextPart::Secret { value: text, .. } => text.clone(),
        _ => "1".into(),
    };
    parts.iter().map(text).collect()
}

/// Returns a string, number or boolean as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}
