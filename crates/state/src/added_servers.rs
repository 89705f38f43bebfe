//! Servers that sessions add: whether there is room, the question to the user, and why one is not added.

use nonet_base::text::clip;
use nonet_config::{ConfigFault, ServerSettings, Transport, shell};
use nonet_servers::downstream::{Connection, likely_cause};
use nonet_text::{
    fault::{Fault, FaultCode},
    name::{self, ServerName},
    secrets,
};
use serde_json::{Map, Value, json};

use crate::world::World;

/// How many servers one session may have, and how many all sessions together.
const PER_SESSION: usize = 8;
const PER_GATEWAY: usize = 32;
/// How many lines of stderr an answer contains, and how long they may be.
const STDERR_LINES: usize = 12;
const STDERR_LINE: usize = 300;

/// The replacement for a secret in a question.
const MASK: &str = "***";

/// Why there is no room for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another server or a category has the name.
    Taken,
    /// The session has its most.
    SessionFull,
    /// All sessions together have their most.
    GatewayFull,
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        match refusal {
            Refusal::Taken => Fault::new(
                FaultCode::InvalidParams,
                "The name is taken by another server or category; choose another one.",
            ),
            Refusal::SessionFull => Fault::new(
                FaultCode::Forbidden,
                format!(
                    "This session has already added {PER_SESSION} servers, which is the maximum. Remove one with gateway.remove_server."
                ),
            ),
            Refusal::GatewayFull => Fault::new(
                FaultCode::Forbidden,
                format!(
                    "The sessions of this gateway have already added {PER_GATEWAY} servers together, which is the maximum. The user can add servers to servers.toml."
                ),
            ),
        }
    }
}

/// Checks whether a session may add another server under this name.
pub fn has_room(world: &World, name: &str, session: u64) -> Result<(), Refusal> {
    if is_taken(world, name) {
        return Err(Refusal::Taken);
    }
    if world.owners.values().filter(|owner| **owner == session).count() >= PER_SESSION {
        return Err(Refusal::SessionFull);
    }
    if world.owners.len() >= PER_GATEWAY { Err(Refusal::GatewayFull) } else { Ok(()) }
}

/// Whether a name belongs to a server or category, in any spelling.
fn is_taken(world: &World, wanted: &str) -> bool {
    let config = &world.config;
    let servers = config.servers.keys().map(ServerName::as_str);
    let servers = servers.chain(config.left_out.keys().map(String::as_str));
    let mut known = servers
        .chain(config.categories.keys().map(String::as_str))
        .chain(world.connections.keys().map(|name| &**name));
    let wanted = name::fold(wanted);
    known.any(|known| name::fold(known) == wanted)
}

/// Returns a free name similar to the wanted one.
pub fn free_name(world: &World, wanted: &str) -> String {
    let stem = wanted.get(..name::MAX_SERVER - 4).unwrap_or(wanted).trim_end_matches(['-', '_']);
    let mut names = (2..1_000).map(|number| format!("{stem}-{number}"));
    names.find(|name| !is_taken(world, name)).unwrap_or_default()
}

/// Returns how many bytes of text a value contains.
pub fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + bytes(value)).sum(),
        _ => 0,
    }
}

/// Builds the question for the user: everything that will run or be reached, without secrets.
pub fn question(
    name: &str,
    settings: &ServerSettings,
    params: &Map<String, Value>,
    persists_in: Option<&str>,
) -> String {
    let mut text = match persists_in {
        Some(file) => format!("Add the server `{name}` to {file}, for all clients?"),
        None => format!("Add the server `{name}` to this session?"),
    };
    if let Transport::Stdio { command, args, .. } = &settings.transport {
        let words: Vec<String> = std::iter::once(command).chain(args).map(|word| shown(word)).collect();
        text.push_str(&format!(" It runs this command on this machine:\n\n{}\n", words.join(" ")));
    }
    for (key, what) in
        [("url", "It connects to"), ("openapi", "It calls the service of the OpenAPI document")]
    {
        if let Some(place) = params.get(key).and_then(Value::as_str) {
            text.push_str(&format!(" {what}:\n\n{}\n", shown(place)));
        }
    }
    let pairs = |key: &str, value: fn(&str, &str) -> String| {
        let pairs = params.get(key).and_then(Value::as_object).into_iter().flatten();
        let pair = |(name, given): (&String, &Value)| {
            format!("{}={}", shown(name), value(name, given.as_str().unwrap_or_default()))
        };
        pairs.map(pair).collect::<Vec<_>>().join(", ")
    };
    let (env, headers) = (pairs("env", variable), pairs("headers", |_, _| MASK.into()));
    for (what, pairs) in [("Variables", env), ("Headers", headers)] {
        if !pairs.is_empty() {
            text.push_str(&format!("\n{what}: {pairs}"));
        }
    }
    let tags: Vec<String> = settings.tags.iter().map(|tag| shown(tag)).collect();
    if !tags.is_empty() {
        text.push_str(&format!("\nTags: {}", tags.join(", ")));
    }
    text
}

/// Returns the value of a variable, unless it is a secret. `NODE_OPTIONS` and similar variables decide what
/// runs.
fn variable(name: &str, value: &str) -> String {
    match secrets::is_secret_name(name) && !secrets::is_harmless(value, name) {
        true => MASK.into(),
        false => shown(&secrets::without_secrets(value).0),
    }
}

/// Whether a character could hide itself or others from a reader: it is invisible, reverses the writing
/// direction, or looks like a space.
fn hides(c: char) -> bool {
    c.is_control()
        || c.is_whitespace() && c != ' '
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns a word of a command as a shell accepts it. Characters that could hide part of it from a reader are
/// escaped.
fn shown(word: &str) -> String {
    if !word.contains(hides) {
        return shell::word(word);
    }
    let mut out = String::from("$'");
    for c in word.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\\' | '\'' => out.extend(['\\', c]),
            c if hides(c) && c > '\u{ffff}' => out.push_str(&format!("\\U{:08x}", u32::from(c))),
            c if hides(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "'"
}

/// Describes the faults of a server's keys.
pub fn told(name: &str, faults: &[ConfigFault]) -> String {
    let prefix = format!("servers.{name}");
    let lines = faults.iter().map(|fault| {
        let key = fault.key.strip_prefix(&prefix).unwrap_or(&fault.key).trim_start_matches('.');
        let key = if key.is_empty() { String::new() } else { format!("`{key}`: ") };
        format!("{key}{}. {}", fault.message, fault.remedy)
    });
    lines.collect::<Vec<_>>().join(" ")
}

/// Says why a server was not added that does not start.
pub fn does_not_start(connection: &Connection, error: &str, persist: bool) -> Fault {
    let stderr = connection.stderr_tail();
    let tail: Vec<String> =
        stderr.iter().rev().take(STDERR_LINES).rev().map(|line| clip(line, STDERR_LINE)).collect();
    let mut details = json!({ "state": "down" });
    if !tail.is_empty() {
        details["stderr"] = json!(tail);
    }
    if let Some(cause) = likely_cause(error) {
        details["likely_cause"] = json!(cause);
    }
    let nowhere = if persist { "servers.toml was not changed" } else { "nothing is left of it" };
    let error = error.trim_end_matches('.');
    let message = format!(
        "`{}` was not added: {error}. Correct the params and call again, which asks the user again; {nowhere}.",
        connection.name
    );
    let fault = Fault::new(FaultCode::ServerDown, message).details(details);
    Fault { retryable: false, ..fault }
}

/// Says why a server was not added that requires a sign-in.
pub fn wants_sign_in(name: &str, error: &str) -> Fault {
    let message = format!(
        "`{name}` was not added, because it requires sign-in: {error}. Ask the user for `headers` that sign in, or call again with `persist`: then the user can sign in with `nonet login {name}`."
    );
    Fault::new(FaultCode::AuthRequired, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_question_hides_itself() {
        let check = |word: &str, expected: &str| assert_eq!(shown(word), expected, "{word:?}");
        check("plain-word", "plain-word");
        check("two words", "'two words'");
        check("caf\u{e9}", "'caf\u{e9}'");
        check("a\nb\\'", "$'a\\nb\\\\\\''");
        check("a\u{1b}[2K", "$'a\\u001b[2K'");
        check("a\u{202e}b", "$'a\\u202eb'");
        check("a\u{a0}b", "$'a\\u00a0b'");
        check("a\u{3164}", "$'a\\u3164'");
        check("a\u{e0041}b", "$'a\\U000e0041b'");
    }

    #[test]
    fn the_value_of_a_variable_is_shown_unless_it_is_a_secret() {
        let check = |name: &str, value: &str, expected: &str| {
            assert_eq!(variable(name, value), expected, "{name}={value}");
        };
        check("LD_PRELOAD", "/opt/x.so", "/opt/x.so");
        check("GIT_ASKPASS", "/opt/x.sh", "/opt/x.sh");
        check("BASH_ENV", "a b", "'a b'");
        check("API_TOKEN", "s3cret-value", "***");
        check("DATABASE", "postgres://ann:s3cret@host/x", "'postgres://ann:***@host/x'");
    }
}
