//! Servers as READMEs offer them: JSON with or without its outer braces, a command, an install link, within
//! fences or not.
//!
//! Each becomes the tree of a client's file, so that whatever reads such a file reads it too.

mod command;
mod links;
mod naming;

use std::path::Path;

use nonet_config::shell;
use serde_json::{Map, Value, json};

use self::naming::name_of;
use super::{
    FileFormat, HostFault, YamlServers,
    entry::HostEntry,
    launchers::is_launcher,
    parts::{SecretName, TextPart, TextParts},
    read, shortened,
};

/// The file name shown for pasted text.
pub(super) const PASTED: &str = "the text";
/// The longest pasted text that is read, in bytes.
pub const LONGEST: usize = 512 << 10;
/// What to do about a command line that is not understood.
const CORRECT_IT: &str = "Correct it, or paste the server as JSON.";
/// The keys that only an entry has, not a table of entries.
const OF_ENTRY: [&str; 6] = ["command", "cmd", "url", "serverUrl", "httpUrl", "uri"];

/// A pasted text, read.
pub(super) struct PastedText {
    /// Trees in the form of a client's file, each with at least one server.
    pub roots: Vec<Value>,
    /// What was passed over.
    pub notes: Vec<String>,
}

/// A server of a pasted text.
#[derive(Debug, PartialEq)]
struct PastedServer {
    name: String,
    entry: Map<String, Value>,
    notes: Vec<String>,
}

impl PastedServer {
    fn root(self, notes: &mut Vec<String>) -> Value {
        notes.extend(self.notes.iter().map(|note| format!("{}: {note}", self.name)));
        json!({ "mcpServers": { self.name: self.entry } })
    }
}

/// Whether a word of the command line is a pasted text rather than a name or a path.
pub fn is_pasted(word: &str) -> bool {
    let is_link = || word.contains("://") || links::SCHEMES.iter().any(|scheme| word.starts_with(scheme));
    word.contains(|c: char| c.is_whitespace() || "{\"`".contains(c)) || is_link()
}

/// Whether a word is an install link of a client.
pub fn is_install_link(word: &str) -> bool {
    links::is_link(word)
}

/// Reads a pasted text.
pub(super) fn read(text: &str) -> Result<PastedText, HostFault> {
    if text.len() > LONGEST {
        let message = format!("the text has {} bytes; at most {LONGEST} are read", text.len());
        return Err(HostFault::new(message, "Paste only the part with the servers."));
    }
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let mut pasted = PastedText { roots: Vec::new(), notes: Vec::new() };
    let mut first = None;
    for piece in fenced(&text).unwrap_or_else(|| vec![text]) {
        match piece_roots(&piece, &mut pasted.notes) {
            Ok(roots) => pasted.roots.extend(roots),
            Err(fault) => {
                // A syntax fault beside usable pieces is told, too; a piece that is something else is not.
                pasted.notes.extend(fault.at.map(|_| fault.to_string()));
                first.get_or_insert(fault);
            }
        }
    }
    match (pasted.roots.is_empty(), first) {
        (true, Some(fault)) => Err(fault),
        _ => Ok(pasted),
    }
}

/// Returns the text of a file with the one server of a text, under another name or its own, and what was
/// passed over.
pub fn one_server(text: &str, name: Option<&str>) -> Result<(String, Vec<String>), HostFault> {
    let pasted = read(text)?;
    let mut found: Vec<(&Value, String, String, Value)> = Vec::new();
    for root in &pasted.roots {
        for table in read::servers(root, Path::new("")).0 {
            for (known, entry) in table.entries.iter() {
                let is_there = found.iter().any(|(_, _, name, there)| name == known && there == entry);
                if !is_there {
                    found.push((root, table.table.clone(), known.clone(), entry.clone()));
                }
            }
        }
    }
    let (root, table, known, entry) = match found.len() {
        1 => found.remove(0),
        0 => return Err(nothing()),
        many => {
            let message = format!("the text has {many} servers");
            return Err(HostFault::new(message, "Add them with `nonet import TEXT`, or paste one of them."));
        }
    };
    // The table tells whose dialect the entry is.
    let table = if table.is_empty() || table.contains('.') { "mcpServers".into() } else { table };
    let mut one = json!({ table: { name.unwrap_or(&known): entry } });
    if let Some(inputs) = root.get("inputs") {
        one["inputs"] = inputs.clone();
    }
    Ok((one.to_string(), pasted.notes))
}

/// Returns the contents of a text's fences; none without a fence.
fn fenced(text: &str) -> Option<Vec<String>> {
    let mut blocks: Vec<String> = Vec::new();
    let mut open: Option<&str> = None;
    for line in text.lines() {
        let fence = ["```", "~~~"].into_iter().find(|fence| line.trim_start().starts_with(fence));
        match (open, fence) {
            (None, Some(fence)) => {
                open = Some(fence);
                blocks.push(String::new());
            }
            (Some(opened), Some(fence)) if opened == fence => open = None,
            (Some(_), _) => {
                if let Some(block) = blocks.last_mut() {
                    block.push_str(line);
                    block.push('\n');
                }
            }
            (None, None) => {}
        }
    }
    (!blocks.is_empty()).then_some(blocks)
}

/// Reads one piece of text.
fn piece_roots(piece: &str, notes: &mut Vec<String>) -> Result<Vec<Value>, HostFault> {
    let text = piece.trim().trim_matches('`').trim();
    if !text.starts_with('{')
        && let Some(root) = links::root(text)?
    {
        return Ok(vec![normal(root)]);
    }
    let file = Path::new(PASTED);
    let parse = |text: &str, format| read::value(text, format, file);
    let root = match text.chars().next() {
        None => return Err(nothing()),
        Some('{') => parse(text, FileFormat::Json)?,
        Some('/') if text.starts_with("//") || text.starts_with("/*") => parse(text, FileFormat::Json)?,
        // The members of an object without its braces.
        Some('"') => parse(&format!("{{{}\n}}", text.trim_end_matches(',')), FileFormat::Json)?,
        Some(_) if is_toml(text) => parse(text, FileFormat::Toml)?,
        Some(_) if is_yaml(text) => parse(text, FileFormat::Yaml(YamlServers::Named))?,
        Some(_) => {
            let servers = command::servers(text, notes)?;
            return Ok(servers.into_iter().map(|server| normal(server.root(notes))).collect());
        }
    };
    let root = normal(named(root));
    let has_servers = read::servers(&root, Path::new("")).0.iter().any(|table| !table.entries.is_empty());
    if has_servers { Ok(vec![root]) } else { Err(nothing()) }
}

/// Whether a text means to be TOML: what is not read as TOML is then a fault of the TOML.
fn is_toml(text: &str) -> bool {
    let begins = |line: &str| line.starts_with('[') && line.trim_end().ends_with(']') || line.contains(" = ");
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let parses = || toml_edit::Document::parse(text).is_ok_and(|document| !document.as_table().is_empty());
    first.is_some_and(begins) || parses()
}

fn is_yaml(text: &str) -> bool {
    let first = text.lines().map(str::trim_end).find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| line.ends_with(':') && !line.contains(char::is_whitespace))
}

/// Gives a bare entry the name that it has inside, or one derived from what it starts.
fn named(root: Value) -> Value {
    let Value::Object(mut entry) = root else { return root };
    let is_entry =
        OF_ENTRY.iter().any(|key| entry.get(*key).is_some_and(|value| value.is_string() || value.is_array()));
    if !is_entry {
        return Value::Object(entry);
    }
    let inputs = entry.shift_remove("inputs");
    let own = entry.get("name").and_then(Value::as_str).map(Into::into);
    let name = own.unwrap_or_else(|| name_of(&entry));
    let mut root = json!({ "mcpServers": { name: entry } });
    if let Some(inputs) = inputs {
        root["inputs"] = inputs;
    }
    root
}

/// Splits commands that are a whole command line, as in install links.
fn normal(mut root: Value) -> Value {
    let tables = root.as_object_mut().into_iter().flat_map(Map::values_mut);
    let entries = tables.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    for entry in entries.filter_map(Value::as_object_mut) {
        let has_args = entry.get("args").and_then(Value::as_array).is_some_and(|args| !args.is_empty());
        let Some(line) = entry.get("command").and_then(Value::as_str).filter(|_| !has_args) else { continue };
        let words = shell::words(line).unwrap_or_default();
        if let Some((program, args)) = words.split_first()
            && !args.is_empty()
            && is_launcher(program)
        {
            let (program, args) = (program.clone(), args.to_vec());
            entry.insert("command".into(), json!(program));
            entry.insert("args".into(), json!(args));
        }
    }
    root
}

/// Turns the placeholders in the place of secrets into values that the user has to give: a README has no
/// secrets.
pub(super) fn without_placeholders(name: &str, entry: &mut HostEntry) {
    let HostEntry::Server(server, _) = entry else { return };
    let ask = |parts: &mut TextParts| {
        for part in parts {
            if let TextPart::Secret { value, key } = part
                && is_placeholder(value)
            {
                let id = match key {
                    SecretName::Own(id) => id.clone(),
                    SecretName::Kind(kind) => format!("{name}_{kind}").to_uppercase(),
                };
                *part =
                    TextPart::Asked { id, what: "the text has a placeholder for it".into(), default: None };
            }
        }
    };
    server.connection.iter_mut().flat_map(|(_, texts)| texts.texts_mut()).for_each(ask);
}

/// Whether a value stands for one that the reader has to fill in: `YOUR_API_KEY`, `<token>`, `ghp_xxxx`,
/// `sk-...`.
fn is_placeholder(value: &str) -> bool {
    const WORDS: [&str; 10] = [
        "your_",
        "your-",
        "your ",
        "_here",
        "-here",
        "xxxx",
        "placeholder",
        "changeme",
        "replace_",
        "insert_",
    ];
    let lower = value.to_lowercase();
    let is_wrapped = [('<', '>'), ('[', ']')]
        .iter()
        .any(|(open, close)| value.starts_with(*open) && value.ends_with(*close));
    is_wrapped
        || lower.ends_with("...")
        || value.ends_with('…')
        || WORDS.iter().any(|word| lower.contains(word))
}

/// A fault of a text without a server.
fn nothing() -> HostFault {
    let remedy = "Paste what a README offers: JSON such as `{\"mcpServers\": {\"NAME\": {\"command\": \"...\"}}}` or only \
                  `\"NAME\": {...}`, a command such as `npx -y PACKAGE` or `claude mcp add NAME -- COMMAND`, the TOML of \
                  Codex, or an install link of Cursor or VS Code.";
    HostFault::new("the text has no server", remedy)
}

/// A fault of a command line, with its beginning.
fn unread(line: &str, why: &str) -> HostFault {
    HostFault::new(format!("`{}`: {why}", shortened(line)), CORRECT_IT)
}

#[cfg(test)]
mod tests;
