//! The text of servers.toml: lists its servers, and adds one without touching the rest.

mod policies;

use std::{collections::BTreeSet, path::Path};

use nonet_config::{self as config, toml_value};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::{
    FileFormat, HostFault,
    edit::add_toml,
    entry::{EntryTransport, HostServer},
    names::{Meaning, Reference, VariableNames},
    parts::{TextPart, TextParts, escaped, own},
    read,
    rules::{ToolNames, hidden_tools, shown_tools},
    server_text::TABLE,
};

pub(super) const HEADER: &str = "\
# The MCP servers behind Nonet. `${VAR}` and `${VAR:-default}` are environment variables or lines of `secrets.env` in
# this folder; `${keyring:NAME}` is a secret in the keyring (`nonet secret set NAME`). `nonet check` reports every fault
# with its line; `nonet schema` prints every key with its meaning.
";
/// Longer lines are wrapped.
const MAX_LINE: usize = 110;
/// The keys of a server's connection. They are compared, and replaced together.
const CONNECTION: [&str; 6] = ["command", "args", "env", "cwd", "url", "headers"];
/// Further keys that depend on the connection and are removed with it.
const OF_ONE_WAY: [&str; 3] = ["transport", "openapi", "endpoints"];

/// A servers.toml while it is being edited.
pub(super) struct ServersToml {
    document: DocumentMut,
    /// The edited entries besides servers: their tables and keys.
    edited: BTreeSet<(&'static str, String)>,
}

/// A server to add: its source file, and its name in servers.toml.
pub(super) struct NewServer<'a> {
    pub server: &'a HostServer,
    pub file: &'a Path,
    pub name: &'a str,
}

impl ServersToml {
    /// Parses a text; an empty one gets a short header.
    pub(crate) fn new(text: &str, file: &Path) -> Result<Self, HostFault> {
        let text = if text.trim().is_empty() { HEADER } else { text };
        let document = read::toml(text, file)?.into_mut();
        match document.get(TABLE) {
            Some(servers) if !servers.is_table_like() => {
                let remedy = "Write each server as its own table, `[servers.NAME]`.";
                Err(HostFault::new("`servers` is not a table".into(), remedy.into()).within(file))
            }
            _ => Ok(Self { document, edited: BTreeSet::new() }),
        }
    }

    /// Returns the current text, if it is still readable and nothing but the named servers, and what else was edited on purpose, has changed.
    pub(crate) fn checked(
        &self,
        before: &str,
        file: &Path,
        servers: &BTreeSet<String>,
    ) -> Result<String, HostFault> {
        let after = self.document.to_string();
        let rest = |text: &str| -> Result<serde_json::Value, HostFault> {
            let mut root = read::value(text, FileFormat::Toml, file)?;
            let servers = servers.iter().map(|name| (TABLE, name));
            for (table, key) in servers.chain(self.edited.iter().map(|(table, key)| (*table, key))) {
                let Some(members) = root.get_mut(table).and_then(serde_json::Value::as_object_mut) else {
                    continue;
                };
                members.shift_remove(key);
                if members.is_empty()
                    && let Some(root) = root.as_object_mut()
                {
                    root.shift_remove(table);
                }
            }
            Ok(root)
        };
        let before = rest(before)?;
        if rest(&after).is_ok_and(|after| after == before) {
            return Ok(after);
        }
        let message = "no servers can be added to the file as it is written";
        let remedy = "Write each server as its own table, `[servers.NAME]`; nothing was changed.";
        Err(HostFault::new(message.into(), remedy.into()).within(file))
    }

    /// Returns every variable and secret named anywhere in the file.
    pub(crate) fn references(&self) -> Vec<Reference> {
        every_reference(&read::toml_value(self.document.as_item()))
    }

    /// Returns a server as text: as tables, and as an inline value.
    pub(crate) fn block(&self, name: &str) -> Option<(String, String)> {
        let server = self.servers()?.get(name)?.clone();
        let mut table = server.clone().into_table().ok()?;
        table.decor_mut().clear();
        let mut inline = server.into_value().ok()?;
        inline.decor_mut().clear();
        let mut document = DocumentMut::new();
        let mut servers = Table::new();
        servers.set_implicit(true);
        servers.insert(name, Item::Table(table));
        document.insert(TABLE, Item::Table(servers));
        Some((document.to_string(), inline.to_string()))
    }

    /// Returns the value of a server in the file.
    pub(crate) fn value(&self, name: &str) -> Option<serde_json::Value> {
        self.servers()?.get(name).map(read::toml_value)
    }

    /// Whether a server of that name exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.servers().is_some_and(|servers| servers.contains_key(name))
    }

    /// Whether the server is disabled.
    pub(crate) fn is_disabled(&self, name: &str) -> bool {
        let server = self.servers().and_then(|servers| servers.get(name)?.as_table_like());
        server.and_then(|server| server.get("enabled")?.as_bool()) == Some(false)
    }

    /// Whether a server cannot have this name because a category has it.
    pub(crate) fn is_category(&self, name: &str) -> bool {
        let categories = self.document.get("categories").and_then(Item::as_table_like);
        categories.is_some_and(|categories| categories.contains_key(name))
    }

    /// Compares the connection of an existing server: the same program with the same arguments and variables,
    /// or the same address with the same headers. If equal, returns what the variables and secrets in the
    /// file mean.
    pub(crate) fn same(
        &self,
        name: &str,
        newcomer: &NewServer,
        names: &VariableNames,
    ) -> Option<Vec<(Reference, Meaning)>> {
        let there = self.servers()?.get(name)?.as_table_like()?;
        let mut comparison = Comparison { newcomer, name, names, found: Vec::new() };
        comparison.is_same(there).then_some(comparison.found)
    }

    /// Returns another server in the file with the same connection.
    pub(crate) fn twin(&self, newcomer: &NewServer, names: &VariableNames) -> Option<String> {
        let others = self.servers()?.iter().map(|(name, _)| name).filter(|name| *name != newcomer.name);
        others.into_iter().find(|name| self.same(name, newcomer, names).is_some()).map(Into::into)
    }

    /// Adds a server after the last one.
    pub(crate) fn add(&mut self, newcomer: &NewServer, names: &mut VariableNames) {
        let table: Table = items(newcomer, names).into_iter().collect();
        add_toml(&mut self.document, TABLE, newcomer.name, table);
    }

    /// Replaces the server of that name. The user's settings for its tools, tags and rules stay.
    pub(crate) fn replace(&mut self, newcomer: &NewServer, names: &mut VariableNames) {
        let new = items(newcomer, names);
        let servers = self.document.get_mut(TABLE).and_then(Item::as_table_like_mut);
        let Some(there) = servers.and_then(|servers| servers.get_mut(newcomer.name)) else { return };
        let inline = there.is_inline_table();
        let Some(there) = there.as_table_like_mut() else { return };
        for key in CONNECTION.into_iter().chain(OF_ONE_WAY).chain(config::OF_REST) {
            if !new.iter().any(|(kept, _)| *kept == key) {
                there.remove(key);
            }
        }
        for (key, mut item) in new {
            if inline {
                item.make_value();
            }
            // A comment after the old value stays.
            if let (Some(old), Some(value)) = (there.get(key).and_then(Item::as_value), item.as_value_mut()) {
                *value.decor_mut() = old.decor().clone();
            }
            there.insert(key, item);
        }
    }

    fn servers(&self) -> Option<&dyn TableLike> {
        self.document.get(TABLE)?.as_table_like()
    }
}

/// Returns the keys of a server in the order used by the repository's own servers.toml.
fn items<'a>(newcomer: &NewServer<'a>, names: &mut VariableNames) -> Vec<(&'a str, Item)> {
    let server = newcomer.server;
    let mut items = Vec::new();
    let mut text = |parts: &TextParts| written(parts, newcomer.name, newcomer.file, names);
    let value = |text: String| Item::Value(Value::from(text));
    if let Some(description) = &server.description {
        items.push(("description", value(text(description))));
    }
    if !server.enabled {
        items.push(("enabled", Item::Value(Value::from(false))));
    }
    match &server.transport {
        EntryTransport::Program { command, args, env, cwd } => {
            items.push(("command", value(text(command))));
            if !args.is_empty() {
                items.push(("args", array("args", args.iter().map(&mut text))));
            }
            if !env.is_empty() {
                items.push(("env", table("env", env.iter().map(|(name, value)| (name, text(value))))));
            }
            if let Some(cwd) = cwd {
                items.push(("cwd", value(text(cwd))));
            }
        }
        EntryTransport::Address { url, headers, sse } => {
            if *sse {
                items.push(("transport", Item::Value(Value::from("sse"))));
            }
            items.push(("url", value(text(url))));
            if !headers.is_empty() {
                items.push((
                    "headers",
                    table("headers", headers.iter().map(|(name, value)| (name, text(value)))),
                ));
            }
        }
        EntryTransport::Document { openapi, base_url, headers } => {
            items.push(("openapi", value(text(openapi))));
            if let Some(base_url) = base_url {
                items.push(("base_url", value(text(base_url))));
            }
            if !headers.is_empty() {
                let headers = headers.iter().map(|(name, value)| (name, text(value)));
                items.push(("headers", table("headers", headers)));
            }
        }
        EntryTransport::Other => {}
    }
    if let Some(tools) = shown_tools(&server.rules) {
        items.push(("allowed_tools", array("allowed_tools", tools.iter().map(pattern))));
    }
    let hidden: Vec<String> = hidden_tools(&server.rules).map(pattern).collect();
    if !hidden.is_empty() {
        items.push(("blocked_tools", array("blocked_tools", hidden.into_iter())));
    }
    for (key, time) in [("timeout", server.timeout), ("start_timeout", server.start_timeout)] {
        if let Some(time) = time {
            items.push((key, value(humantime::format_duration(time).to_string())));
        }
    }
    items.extend(server.more.iter().map(|(key, value)| (key.as_str(), item(key, value))));
    // Sub-tables come last, or they would swallow the keys after them.
    items.sort_by_key(|(_, item)| item.is_table());
    items
}

fn array(key: &str, texts: impl Iterator<Item = String>) -> Item {
    let mut array: Array = texts.collect();
    if key.len() + 3 + array.to_string().len() > MAX_LINE {
        for item in array.iter_mut() {
            item.decor_mut().set_prefix("\n    ");
        }
        array.set_trailing("\n");
        array.set_trailing_comma(true);
    }
    Item::Value(Value::Array(array))
}

fn table<'n>(key: &str, texts: impl Iterator<Item = (&'n String, String)>) -> Item {
    let table: InlineTable = texts.map(|(name, text)| (name.as_str(), Value::from(text))).collect();
    match key.len() + 3 + table.to_string().len() > MAX_LINE {
        true => {
            let mut table = table.into_table();
            table.decor_mut().set_prefix("\n");
            Item::Table(table)
        }
        false => Item::Value(Value::InlineTable(table)),
    }
}

/// Converts any other value; one too long for a line becomes its own table.
fn item(key: &str, json: &serde_json::Value) -> Item {
    let value = toml_value(json);
    match json {
        serde_json::Value::Object(members) if key.len() + 3 + value.to_string().len() > MAX_LINE => {
            let mut items: Vec<_> =
                members.iter().map(|(key, member)| (key.as_str(), item(key, member))).collect();
            items.sort_by_key(|(_, item)| item.is_table());
            let mut table: Table = items.into_iter().collect();
            table.decor_mut().set_prefix("\n");
            Item::Table(table)
        }
        _ => Item::Value(value),
    }
}

/// Returns a text of servers.toml without its escapes.
fn own_text(text: &str) -> String {
    text.replace("$${", "${")
}

/// Returns a pattern as a text of servers.toml.
fn pattern(tools: &ToolNames) -> String {
    escaped(&tools.to_string())
}

/// Returns parts as a text of servers.toml, with references in the place of a server's secrets.
pub(super) fn written(parts: &TextParts, server: &str, file: &Path, names: &mut VariableNames) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            TextPart::Plain(plain) => text.push_str(&escaped(plain)),
            TextPart::Variable { name, default: None } => text.extend(["${", name, "}"]),
            TextPart::Variable { name, default: Some(default) } => {
                text.extend(["${", name, ":-", default, "}"])
            }
            TextPart::Keyring(name) => text.push_str(&Reference::Keyring(name.clone()).to_string()),
            part => {
                let Some(held) = held(part, file) else { continue };
                match (part, names.name(server, held)) {
                    (TextPart::Asked { default: Some(default), .. }, Reference::Variable(name)) => {
                        text.extend(["${", &name, ":-", default, "}"]);
                    }
                    (_, reference) => text.push_str(&reference.to_string()),
                }
            }
        }
    }
    text
}

/// Returns what a variable must mean to replace this part.
pub(super) fn held(part: &TextPart, file: &Path) -> Option<Meaning> {
    match part {
        TextPart::Secret { value, key } => Some(Meaning::Value { value: value.clone(), key: key.clone() }),
        // Two files may ask for different things under one name.
        TextPart::Asked { id, what, .. } => Some(Meaning::Asked(format!("{}\n{what}\n{id}", file.display()))),
        _ => None,
    }
}

/// Visits the variables and secrets that a text names, also in defaults; each with whether it has a default.
pub(super) fn references(parts: &[TextPart], found: &mut dyn FnMut(Reference, bool)) {
    for part in parts {
        match part {
            TextPart::Variable { name, default } => {
                found(Reference::Variable(name.clone()), default.is_some());
                references(&own(default.as_deref().unwrap_or_default()), found);
            }
            TextPart::Keyring(name) => found(Reference::Keyring(name.clone()), false),
            _ => {}
        }
    }
}

/// Visits every variable and secret named anywhere in a value, each with whether it has a default.
pub(super) fn references_in(value: &serde_json::Value, found: &mut dyn FnMut(Reference, bool)) {
    texts(value, &mut |text| references(&own(text), found));
}

/// Returns every variable and secret named anywhere in a value.
pub(super) fn every_reference(value: &serde_json::Value) -> Vec<Reference> {
    let mut found = Vec::new();
    references_in(value, &mut |reference, _| found.push(reference));
    found
}

fn texts(value: &serde_json::Value, found: &mut dyn FnMut(&str)) {
    match value {
        serde_json::Value::String(text) => found(text),
        serde_json::Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        serde_json::Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => {}
    }
}

/// Compares a server with an existing one.
struct Comparison<'a> {
    newcomer: &'a NewServer<'a>,
    /// The name of the existing server.
    name: &'a str,
    names: &'a VariableNames<'a>,
    /// The meanings of its variables and secrets, if the servers are the same.
    found: Vec<(Reference, Meaning)>,
}

impl Comparison<'_> {
    fn is_same(&mut self, there: &dyn TableLike) -> bool {
        match &self.newcomer.server.transport {
            EntryTransport::Program { command, args, env, cwd } => {
                self.text(there, "command", Some(command))
                    && self.text(there, "cwd", cwd.as_ref())
                    && self.list(there, args)
                    && self.table(there, "env", env)
                    && !there.contains_key("url")
            }
            // Without `transport`, it is detected.
            EntryTransport::Address { url, headers, .. } => {
                self.text(there, "url", Some(url))
                    && self.table(there, "headers", headers)
                    && !there.contains_key("command")
            }
            EntryTransport::Document { openapi, base_url, headers } => {
                self.text(there, "openapi", Some(openapi))
                    && self.text(there, "base_url", base_url.as_ref())
                    && self.table(there, "headers", headers)
            }
            EntryTransport::Other => false,
        }
    }

    fn text(&mut self, there: &dyn TableLike, key: &str, parts: Option<&TextParts>) -> bool {
        match (there.get(key), parts) {
            (None, None) => true,
            (Some(there), Some(parts)) => there.as_str().is_some_and(|text| self.fits(text, parts)),
            _ => false,
        }
    }

    fn list(&mut self, there: &dyn TableLike, args: &[TextParts]) -> bool {
        let there: Vec<_> = match there.get("args").map(Item::as_array) {
            None => Vec::new(),
            Some(Some(array)) => array.iter().map(Value::as_str).collect(),
            Some(None) => return false,
        };
        there.len() == args.len()
            && there.iter().zip(args).all(|(text, parts)| text.is_some_and(|text| self.fits(text, parts)))
    }

    fn table(&mut self, there: &dyn TableLike, key: &str, texts: &[(String, TextParts)]) -> bool {
        let empty = Table::new();
        let there: &dyn TableLike = match there.get(key) {
            None => &empty,
            Some(item) => match item.as_table_like() {
                Some(table) => table,
                None => return false,
            },
        };
        // Header names are case-insensitive.
        let find = |name: &str| {
            let same =
                |known: &str| if key == "env" { known == name } else { known.eq_ignore_ascii_case(name) };
            there.iter().find(|(known, _)| same(known)).and_then(|(_, item)| item.as_str())
        };
        there.len() == texts.len()
            && texts.iter().all(|(name, parts)| find(name).is_some_and(|text| self.fits(text, parts)))
    }

    /// Whether a text of servers.toml means the same as the parts. The text may contain the secret itself.
    fn fits(&mut self, text: &str, parts: &TextParts) -> bool {
        let there = own(text);
        let whole: String = parts
            .iter()
            .map(|part| match part {
                TextPart::Plain(text) | TextPart::Secret { value: text, .. } => text.as_str(),
                _ => "\0",
            })
            .collect();
        if super::parts::as_plain(&there) == Some(&whole) {
            return true;
        }
        there.len() == parts.len() && there.iter().zip(parts).all(|(there, part)| self.part(there, part))
    }

    fn part(&mut self, there: &TextPart, part: &TextPart) -> bool {
        if there == part {
            return true;
        }
        let default = match part {
            TextPart::Asked { default, .. } => default.as_ref(),
            _ => None,
        };
        let reference = match there {
            TextPart::Variable { name, default: there } if there.as_ref() == default => {
                Reference::Variable(name.clone())
            }
            TextPart::Keyring(name) => Reference::Keyring(name.clone()),
            _ => return false,
        };
        let Some(held) = held(part, self.newcomer.file) else { return false };
        let fits = self.names.may_be(&reference, self.name, &held)
            && self.found.iter().all(|(known, other)| *known != reference || *other == held);
        if fits {
            self.found.push((reference, held));
        }
        fits
    }
}
