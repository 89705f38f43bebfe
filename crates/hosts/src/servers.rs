//! servers.toml: its servers, and edits that leave everything else as it is.

mod policies;

use std::{collections::BTreeSet, path::Path};

use nonet_config::{
    self as config, ValueSources, keyring, secrets_file::SecretsFile, toml_value, written_key,
};
use nonet_text::name;
use serde_json::Value as Json;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::{
    FileChange, FileFormat, HostFault, Machine,
    edit::without_entries,
    entry::{EntryText, HostServer},
    listed, literals,
    names::{Meaning, Reference, VariableNames},
    parts::{TextPart, TextParts, as_plain, escaped, own},
    read,
    rules::{ToolNames, hidden_tools, shown_tools},
    shortened,
    text::{self, Text},
    toml,
};

/// The key of the table of servers.
pub(super) const TABLE: &str = "servers";
const HEADER: &str = "\
# The MCP servers behind Nonet. `${VAR}` and `${VAR:-default}` are environment variables or lines of `secrets.env` in
# this folder; `${keyring:NAME}` is a secret in the keyring (`nonet secret set NAME`). `nonet check` reports every fault
# with its line; `nonet schema` prints every key with its meaning.
";
/// Longer lines are wrapped.
const MAX_LINE: usize = 110;
/// The keys of a server's connection. They are compared, and replaced together.
const CONNECTION: [&str; 8] = ["command", "args", "env", "cwd", "url", "headers", "openapi", "base_url"];
/// Further keys that depend on the connection and are removed with it.
const OF_ONE_WAY: [&str; 3] = ["transport", "operations", "endpoints"];

/// A servers.toml while it is being edited.
pub(super) struct ServersToml<'f> {
    pub file: &'f Path,
    bytes: Option<Vec<u8>>,
    pub text: Text,
    document: DocumentMut,
    /// The edited entries: their tables and keys.
    edited: BTreeSet<(&'static str, String)>,
}

/// A server to add: its source file, and its name in servers.toml.
pub(super) struct NewServer<'a> {
    pub server: &'a HostServer,
    pub file: &'a Path,
    pub name: &'a str,
}

impl<'f> ServersToml<'f> {
    /// Reads a file; a missing one is empty.
    pub(crate) fn read(file: &'f Path) -> Result<Self, HostFault> {
        Self::new(text::bytes(file)?, file)
    }

    /// Parses a file's bytes; an empty text gets a short header.
    pub(crate) fn new(bytes: Option<Vec<u8>>, file: &'f Path) -> Result<Self, HostFault> {
        let text = Text::new(bytes.as_deref(), file)?;
        let start = if text.plain().trim().is_empty() { HEADER } else { text.plain() };
        let document = toml::parse(start, file)?.into_mut();
        if document.get(TABLE).is_some_and(|servers| !servers.is_table_like()) {
            let remedy = "Write each server as its own table, `[servers.NAME]`.";
            return Err(HostFault::new("`servers` is not a table", remedy).within(file));
        }
        Ok(Self { file, bytes, text, document, edited: BTreeSet::new() })
    }

    /// Returns the current content.
    pub(crate) fn value(&self) -> Json {
        toml::value(self.document.as_item())
    }

    /// Returns the current text, if it is still readable and nothing but what was edited on purpose has
    /// changed.
    pub(crate) fn edited_text(&self) -> Result<String, HostFault> {
        if self.edited.is_empty() {
            return Ok(self.text.plain().into());
        }
        let after = toml::written(&self.document, self.text.plain());
        let rest = |root: Json| {
            without_entries(root, self.edited.iter().map(|(table, name)| (*table, name.as_str())))
        };
        let before = read::value(self.text.plain(), FileFormat::Toml, self.file)?;
        if let Ok(root) = read::value(&after, FileFormat::Toml, self.file)
            && root == self.value()
            && rest(root) == rest(before)
        {
            return Ok(after);
        }
        let message = "the file cannot be edited without changing more than its servers";
        let remedy = "Write each server as its own table, `[servers.NAME]`; nothing was changed.";
        Err(HostFault::new(message, remedy).within(self.file))
    }

    /// Returns the change to another text.
    pub(crate) fn change_to(&self, after: &str, machine: &Machine) -> FileChange {
        let is_same = after == self.text.plain();
        let bytes = if is_same { self.bytes.clone() } else { Some(self.text.with(after)) };
        let mut change = FileChange::new(self.file, self.bytes.clone(), bytes, machine);
        change.secrets = [self.text.plain(), after].into_iter().flat_map(literals::secrets).collect();
        change
    }

    /// Returns the change to the current text.
    pub(crate) fn change(&self, machine: &Machine) -> Result<FileChange, HostFault> {
        Ok(self.change_to(&self.edited_text()?, machine))
    }

    /// Returns the faults of the current text that the file did not have, wherever values come from.
    pub(crate) fn new_faults(&self, machine: &Machine, secrets: &SecretsFile) -> Vec<config::ConfigFault> {
        let own =
            |name: &str| machine.var(name).map(Into::into).or_else(|| secrets.get(name).map(Into::into));
        let none = |name: &str| Err(keyring::Error::NoSecret(name.into()));
        // A digit is valid nearly everywhere.
        let some = |_: &str| Some("1".to_string());
        let faults = |text: &str, sources: ValueSources| match config::parse(text, self.file, sources) {
            Ok(loaded) => loaded.faults,
            Err(unusable) => unusable.faults().to_vec(),
        };
        let same =
            |a: &config::ConfigFault, b: &config::ConfigFault| (&a.key, &a.message) == (&b.key, &b.message);
        // A fault with both real and made-up values is the text's own, not caused by an unset variable.
        let own_faults = |text: &str| {
            let others = faults(
                text,
                ValueSources { env: &some, keyring: &|_| Ok("1".into()), program: &|_, _, _| Ok("1".into()) },
            );
            let mut found = faults(text, ValueSources { env: &own, keyring: &none, ..ValueSources::NONE });
            found.retain(|fault| others.iter().any(|other| same(fault, other)));
            found
        };
        let before = own_faults(self.text.plain());
        let mut found = own_faults(&self.document.to_string());
        found.retain(|fault| !before.iter().any(|known| same(fault, known)));
        found
    }

    /// Returns every variable and secret named anywhere in the file.
    pub(crate) fn references(&self) -> Vec<Reference> {
        every_reference(&self.value())
    }

    /// Returns the server of that name.
    pub(crate) fn known(&self, name: &str) -> Result<Json, HostFault> {
        if let Some(server) = self.servers().and_then(|servers| servers.get(name)) {
            return Ok(toml::value(server));
        }
        let names: Vec<&str> = self.servers().into_iter().flat_map(TableLike::iter).map(|it| it.0).collect();
        let near = name::nearest(name, names.iter().copied(), 3);
        let remedy = match (near.is_empty(), names.is_empty()) {
            (false, _) => format!("Did you mean {}?", listed(&near)),
            (true, true) => "It has no servers; `nonet add` adds one.".into(),
            (true, false) => format!("Its servers: {}.", listed(&names[..names.len().min(20)])),
        };
        Err(HostFault::new(format!("there is no server `{}`", shortened(name)), remedy).within(self.file))
    }

    /// Removes a server.
    pub(crate) fn remove(&mut self, name: &str) {
        toml::remove(&mut self.document, TABLE, name);
        self.edited.insert((TABLE, name.into()));
    }

    /// Enables or disables a server.
    pub(crate) fn enable(&mut self, name: &str, enabled: bool) {
        let server = self.document.get_mut(TABLE).and_then(|servers| servers.get_mut(name));
        server.into_iter().for_each(|server| toml::set_first(server, "enabled", enabled.into()));
        self.edited.insert((TABLE, name.into()));
    }

    /// Returns the tables of a server with their comments; a fault if they are not one run of lines.
    pub(crate) fn part(&self, name: &str) -> Result<DocumentMut, HostFault> {
        toml::extract(&self.document, TABLE, name).ok_or_else(|| {
            let message = format!("the entry of `{name}` is spread over the file, or written on one line");
            let remedy = format!("Edit `{TABLE}.{}` in the file.", written_key(name));
            HostFault::new(message, remedy).within(self.file)
        })
    }

    /// Replaces the tables of a server and their comments.
    pub(crate) fn set_part(&mut self, name: &str, part: &DocumentMut) {
        toml::replace(&mut self.document, TABLE, name, part);
        self.edited.insert((TABLE, name.into()));
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
        toml::add(&mut self.document, TABLE, newcomer.name, table, "");
        self.edited.insert((TABLE, newcomer.name.into()));
    }

    /// Replaces the server of that name. The user's settings for its tools, tags and rules stay.
    pub(crate) fn replace(&mut self, newcomer: &NewServer, names: &mut VariableNames) {
        let new = items(newcomer, names);
        self.edited.insert((TABLE, newcomer.name.into()));
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
    for (key, texts) in server.connection.iter().filter(|(_, texts)| !texts.is_empty()) {
        let item = match texts {
            EntryText::One(parts) => value(text(parts)),
            EntryText::List(texts) => array(key, texts.iter().map(&mut text)),
            EntryText::Named(texts) => table(key, texts.iter().map(|(name, parts)| (name, text(parts)))),
        };
        items.push((*key, item));
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
fn item(key: &str, json: &Json) -> Item {
    let value = toml_value(json);
    match json {
        Json::Object(members) if key.len() + 3 + value.to_string().len() > MAX_LINE => {
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
            TextPart::Program(place) => text.extend(["${", place, "}"]),
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
pub(super) fn references_in(value: &Json, found: &mut dyn FnMut(Reference, bool)) {
    texts(value, &mut |text| references(&own(text), found));
}

/// Returns every variable and secret named anywhere in a value.
pub(super) fn every_reference(value: &Json) -> Vec<Reference> {
    let mut found = Vec::new();
    references_in(value, &mut |reference, _| found.push(reference));
    found
}

fn texts(value: &Json, found: &mut dyn FnMut(&str)) {
    match value {
        Json::String(text) => found(text),
        Json::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Json::Object(members) => members.values().for_each(|member| texts(member, found)),
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
    /// Without `transport`, it is detected, so it does not matter.
    fn is_same(&mut self, there: &dyn TableLike) -> bool {
        let server = self.newcomer.server;
        !server.connection.is_empty()
            && CONNECTION.iter().all(|key| self.value(key, there.get(key), server.connected_by(key)))
    }

    fn value(&mut self, key: &str, there: Option<&Item>, texts: Option<&EntryText>) -> bool {
        let Some(there) = there else { return texts.is_none_or(EntryText::is_empty) };
        let (array, table) = (there.as_array(), there.as_table_like());
        match texts {
            None => array.is_some_and(Array::is_empty) || table.is_some_and(TableLike::is_empty),
            Some(EntryText::One(parts)) => there.as_str().is_some_and(|text| self.fits(text, parts)),
            Some(EntryText::List(texts)) => array.is_some_and(|array| {
                let mut pairs = array.iter().zip(texts);
                let fits = |(text, parts): (&Value, _)| text.as_str().is_some_and(|it| self.fits(it, parts));
                array.len() == texts.len() && pairs.all(fits)
            }),
            Some(EntryText::Named(texts)) => table.is_some_and(|table| {
                // Header names are case-insensitive.
                let same = |known: &str, name: &str| match key {
                    "env" => known == name,
                    _ => known.eq_ignore_ascii_case(name),
                };
                let find = |name: &str| table.iter().find(|(known, _)| same(known, name))?.1.as_str();
                let mut fits = |(name, parts): &(String, TextParts)| {
                    find(name).is_some_and(|text| self.fits(text, parts))
                };
                table.len() == texts.len() && texts.iter().all(&mut fits)
            }),
        }
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
        if as_plain(&there) == Some(&whole) {
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
