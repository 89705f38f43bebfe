//! Adds an entry to a host's text and removes entries, without changing anything else: comments, order, indentation,
//! unknown keys. Each edit is verified by reading the result.

use std::path::Path;

use jsonc_parser::{
    CollectOptions,
    common::Ranged,
    cst::{CstInputValue, CstObject, CstRootNode},
    parse_to_ast,
};
use nonet_config::toml_value;
use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item, Table, Value as Toml};

use super::{FileFormat, HostFault, listed, read, text::position, yaml};

/// The table of servers in a host's file. Texts have `\n` line ends.
pub(super) struct HostTable<'a> {
    pub format: FileFormat,
    pub table: &'static str,
    pub file: &'a Path,
}

/// Keys of an entry for an address; an entry for a program has none of them.
pub(super) const ADDRESS: [&str; 6] = ["url", "uri", "serverUrl", "httpUrl", "headers", "http_headers"];

impl HostTable<'_> {
    /// Returns the entries in a text, by name.
    pub(crate) fn entries(&self, text: &str) -> Result<Map<String, Value>, HostFault> {
        let root = read::value(text, self.format, self.file)?;
        match root.get(self.table) {
            None => Ok(Map::new()),
            Some(Value::Object(entries)) => Ok(entries.clone()),
            Some(Value::Null) if self.is_yaml() => Ok(Map::new()),
            Some(Value::Array(items)) if self.is_yaml() => Ok(read::named(items)),
            Some(_) => {
                let (line, column) = self.place(text);
                let remedy = format!(
                    "Make `{0}` a table of servers, or remove `{0}`; nothing was changed.",
                    self.table
                );
                Err(HostFault::new(format!("`{}` is not a table", self.table), remedy)
                    .within(self.file)
                    .at(line, column))
            }
        }
    }

    /// Adds an entry, or sets keys of an existing one. Its other keys stay, except the ones that would make it a
    /// remote server.
    pub(crate) fn put(
        &self,
        text: &str,
        name: &str,
        entry: &Map<String, Value>,
    ) -> Result<String, HostFault> {
        let entries = self.entries(text)?;
        let there = entries.get(name).and_then(Value::as_object);
        let edited = match self.format {
            FileFormat::Json => {
                self.json(text, |servers| match servers.get(name).filter(|_| there.is_some()) {
                    Some(property) => {
                        let object = property.object_value_or_set();
                        for key in ADDRESS {
                            object.get(key).into_iter().for_each(|property| property.remove());
                        }
                        for (key, value) in entry {
                            match object.get(key) {
                                _ if there.and_then(|there| there.get(key)) == Some(value) => {}
                                Some(property) => property.set_value(input(value)),
                                None => drop(object.append(key, input(value))),
                            }
                        }
                    }
                    None => {
                        servers.get(name).into_iter().for_each(|property| property.remove());
                        servers.append(name, input(&Value::Object(entry.clone())));
                    }
                })?
            }
            FileFormat::Toml => self.toml(text, |document| {
                let servers = document.get_mut(self.table).and_then(Item::as_table_like_mut);
                let known = servers.and_then(|servers| servers.get_mut(name));
                let Some(table) = known.and_then(Item::as_table_like_mut) else {
                    let items =
                        entry.iter().map(|(key, value)| (key.as_str(), Item::Value(toml_value(value))));
                    return add_toml(document, self.table, name, items.collect());
                };
                ADDRESS.into_iter().for_each(|key| drop(table.remove(key)));
                for (key, value) in entry {
                    if there.and_then(|there| there.get(key)) != Some(value) {
                        table.insert(key, Item::Value(toml_value(value)));
                    }
                }
            })?,
            FileFormat::Yaml(servers) => {
                let put = yaml::put(text, self.table, servers, (name, entry), there);
                put.ok_or_else(|| self.unsafe_edit(&[name]))?
            }
        };
        let edited = self.checked(text, edited, &[name])?;
        let entries = self.entries(&edited)?;
        let has = |(key, value): (&String, &Value)| {
            entries.get(name).and_then(|entry| entry.get(key)) == Some(value)
        };
        if entry.iter().all(has) { Ok(edited) } else { Err(self.unsafe_edit(&[name])) }
    }

    /// Removes entries; missing ones are ignored.
    pub(crate) fn take(&self, text: &str, names: &[&str]) -> Result<String, HostFault> {
        let entries = self.entries(text)?;
        let names: Vec<_> = names.iter().copied().filter(|name| entries.contains_key(*name)).collect();
        if names.is_empty() {
            return Ok(text.into());
        }
        let edited = match self.format {
            FileFormat::Json => self.json(text, |servers| {
                for name in &names {
                    servers.get(name).into_iter().for_each(|property| property.remove());
                }
            })?,
            FileFormat::Toml => self.toml(text, |document| {
                for name in &names {
                    let servers = document.get_mut(self.table).and_then(Item::as_table_like_mut);
                    let Some(taken) = servers.and_then(|servers| servers.remove(name)) else { continue };
                    keep_comments(document, &taken);
                }
            })?,
            FileFormat::Yaml(_) => {
                yaml::take(text, self.table, &names).ok_or_else(|| self.unsafe_edit(&names))?
            }
        };
        self.checked(text, edited, &names)
    }

    fn json(&self, text: &str, edit: impl FnOnce(&CstObject)) -> Result<String, HostFault> {
        // `entries` has already reported syntax errors.
        let root = CstRootNode::parse(text, &read::JSONC).map_err(|_| self.unsafe_edit(&[]))?;
        let servers = root.object_value_or_create().and_then(|root| root.object_value_or_create(self.table));
        edit(&servers.ok_or_else(|| self.unsafe_edit(&[]))?);
        Ok(root.to_string())
    }

    fn toml(&self, text: &str, edit: impl FnOnce(&mut DocumentMut)) -> Result<String, HostFault> {
        let mut document = read::toml(text, self.file)?.into_mut();
        edit(&mut document);
        Ok(document.to_string())
    }

    /// Returns the edited text, if nothing but the named entries has changed.
    fn checked(&self, before: &str, after: String, names: &[&str]) -> Result<String, HostFault> {
        let same = self.keeps_the_rest(before, &after, |name| names.contains(&name))?;
        if same { Ok(after) } else { Err(self.unsafe_edit(names)) }
    }

    /// Whether an edited text is still readable and nothing but some entries has changed.
    pub(crate) fn keeps_the_rest(
        &self,
        before: &str,
        after: &str,
        edited: impl Fn(&str) -> bool,
    ) -> Result<bool, HostFault> {
        let rest = |text: &str| -> Result<Value, HostFault> {
            let mut root = read::value(text, self.format, self.file)?;
            let Some(members) = root.as_object_mut() else { return Ok(root) };
            let is_empty = match members.get_mut(self.table) {
                Some(Value::Object(entries)) => {
                    entries.retain(|name, _| !edited(name));
                    entries.is_empty()
                }
                Some(Value::Array(items)) if self.is_yaml() => {
                    items.retain(|item| !read::name_of(item).is_some_and(&edited));
                    items.is_empty()
                }
                Some(Value::Null) => self.is_yaml(),
                _ => false,
            };
            if is_empty {
                members.shift_remove(self.table);
            }
            Ok(root)
        };
        let before = rest(before)?;
        Ok(rest(after).is_ok_and(|after| after == before))
    }

    fn is_yaml(&self) -> bool {
        matches!(self.format, FileFormat::Yaml(_))
    }

    fn unsafe_edit(&self, names: &[&str]) -> HostFault {
        let message = "the file cannot be edited without changing more than the entry";
        let remedy = format!("Edit {} in `{}` by hand; nothing was changed.", listed(names), self.table);
        HostFault::new(message.into(), remedy).within(self.file)
    }

    /// Returns the line and column of the table's value.
    fn place(&self, text: &str) -> (usize, usize) {
        let at = match self.format {
            FileFormat::Json => parse_to_ast(text, &CollectOptions::default(), &read::JSONC)
                .ok()
                .and_then(|parsed| Some(parsed.value?.as_object()?.get(self.table)?.value.start())),
            FileFormat::Toml => read::toml(text, self.file)
                .ok()
                .and_then(|document| Some(document.as_table().get(self.table)?.span()?.start)),
            FileFormat::Yaml(_) => yaml::place(text, self.table),
        };
        position(text, at.unwrap_or_default())
    }
}

/// Adds an entry at the end of the table of servers, and creates a missing table.
pub(super) fn add_toml(document: &mut DocumentMut, servers: &str, name: &str, mut entry: Table) {
    let mut prefix = "\n".to_string();
    // In a file without tables, all comments are trailing.
    if document.as_table().is_empty() {
        let comments = document.trailing().as_str().unwrap_or_default();
        let gap = if comments.is_empty() || comments.ends_with("\n\n") { "" } else { "\n" };
        prefix = format!("{comments}{gap}");
        document.set_trailing("");
    }
    entry.decor_mut().set_prefix(prefix);
    let servers = document.entry(servers).or_insert_with(|| {
        let mut servers = Table::new();
        servers.set_implicit(true);
        Item::Table(servers)
    });
    // An inline table, `{...}`, cannot contain tables.
    let entry = match servers.is_inline_table() {
        true => Item::Value(Toml::InlineTable(entry.into_inline_table())),
        false => Item::Table(entry),
    };
    if let Some(servers) = servers.as_table_like_mut() {
        servers.insert(name, entry);
    }
}

/// Moves comments above a removed table to what follows, except the ones directly above the table.
fn keep_comments(document: &mut DocumentMut, taken: &Item) {
    let Some(table) = taken.as_table() else { return };
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
    let Some((kept, _)) = prefix.rsplit_once("\n\n") else { return };
    if !kept.contains('#') {
        return;
    }
    let kept = format!("{kept}\n");
    let from = table.position();
    match next_table(document.as_table_mut(), from) {
        Some(next) => {
            let prefix = next.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
            let prefix = format!("{kept}{prefix}");
            next.decor_mut().set_prefix(prefix);
        }
        None => {
            let trailing = document.trailing().as_str().unwrap_or_default().to_string();
            document.set_trailing(format!("{kept}{trailing}"));
        }
    }
}

/// Returns the first table after a position in the file.
fn next_table(root: &mut Table, from: Option<isize>) -> Option<&mut Table> {
    fn positions(table: &Table, found: &mut Vec<isize>) {
        for (_, item) in table {
            match item {
                Item::Table(table) => {
                    found.extend(table.position().filter(|_| !table.is_implicit() && !table.is_dotted()));
                    positions(table, found);
                }
                Item::ArrayOfTables(tables) => tables.iter().for_each(|table| {
                    found.extend(table.position());
                    positions(table, found);
                }),
                _ => {}
            }
        }
    }
    fn at(table: &mut Table, position: isize) -> Option<&mut Table> {
        let own =
            |table: &Table| table.position() == Some(position) && !table.is_implicit() && !table.is_dotted();
        table.iter_mut().find_map(|(_, item)| match item {
            Item::Table(table) => {
                if own(table) {
                    return Some(table);
                }
                at(table, position)
            }
            Item::ArrayOfTables(tables) => tables.iter_mut().find_map(|table| {
                if own(table) {
                    return Some(table);
                }
                at(table, position)
            }),
            _ => None,
        })
    }
    let mut found = Vec::new();
    positions(root, &mut found);
    let next = found.into_iter().filter(|position| Some(*position) > from).min()?;
    at(root, next)
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(truth) => CstInputValue::Bool(*truth),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(members) => {
            CstInputValue::Object(members.iter().map(|(key, value)| (key.clone(), input(value))).collect())
        }
    }
}
