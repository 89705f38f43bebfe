//! Adds an entry to a host's text and removes entries, without changing anything else: comments, order,
//! indentation, unknown keys. Each edit is verified by reading the result.

use std::path::Path;

use serde_json::{Map, Value};

use super::{FileFormat, HostFault, json, listed, read, text::position, toml, yaml};

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
        let is_yaml = matches!(self.format, FileFormat::Yaml(_));
        let mut root = read::value(text, self.format, self.file)?;
        match root.get_mut(self.table).map(Value::take) {
            None => Ok(Map::new()),
            Some(Value::Object(entries)) => Ok(entries),
            Some(Value::Null) if is_yaml => Ok(Map::new()),
            Some(Value::Array(items)) if is_yaml => Ok(read::named(&items)),
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

    /// Adds an entry, or sets keys of an existing one. Its other keys stay, except the ones that would make
    /// it a remote server.
    pub(crate) fn put(
        &self,
        text: &str,
        name: &str,
        entry: &Map<String, Value>,
    ) -> Result<String, HostFault> {
        let entries = self.entries(text)?;
        let there = entries.get(name).and_then(Value::as_object);
        let edited = match self.format {
            FileFormat::Json => json::put(text, self.table, (name, entry), there),
            FileFormat::Toml => {
                let mut document = toml::parse(text, self.file)?.into_mut();
                toml::put(&mut document, self.table, (name, entry), there);
                Some(document.to_string())
            }
            FileFormat::Yaml(servers) => yaml::put(text, self.table, servers, (name, entry), there),
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
            FileFormat::Json => json::take(text, self.table, &names),
            FileFormat::Toml => {
                let mut document = toml::parse(text, self.file)?.into_mut();
                names.iter().for_each(|name| toml::remove(&mut document, self.table, name));
                Some(document.to_string())
            }
            FileFormat::Yaml(_) => yaml::take(text, self.table, &names),
        };
        self.checked(text, edited, &names)
    }

    /// Returns the edited text, if nothing but the named entries has changed.
    fn checked(&self, before: &str, after: Option<String>, names: &[&str]) -> Result<String, HostFault> {
        let rest = |text: &str| -> Result<Value, HostFault> {
            let root = read::value(text, self.format, self.file)?;
            Ok(without_entries(root, names.iter().map(|name| (self.table, *name))))
        };
        let before = rest(before)?;
        let after = after.filter(|after| rest(after).is_ok_and(|after| after == before));
        after.ok_or_else(|| self.unsafe_edit(names))
    }

    fn unsafe_edit(&self, names: &[&str]) -> HostFault {
        let message = "the file cannot be edited without changing more than the entry";
        let remedy = format!("Edit {} in `{}` by hand; nothing was changed.", listed(names), self.table);
        HostFault::new(message, remedy).within(self.file)
    }

    /// Returns the line and column of the table's value.
    fn place(&self, text: &str) -> (usize, usize) {
        let at = match self.format {
            FileFormat::Json => json::place(text, self.table),
            FileFormat::Toml => toml::place(text, self.table),
            FileFormat::Yaml(_) => yaml::place(text, self.table),
        };
        position(text, at.unwrap_or_default())
    }
}

/// Returns a file's tree without some entries of its tables, and without the tables that have no others.
pub(super) fn without_entries<'e>(
    mut root: Value,
    entries: impl Iterator<Item = (&'e str, &'e str)>,
) -> Value {
    let Some(members) = root.as_object_mut() else { return root };
    for (table, name) in entries {
        let is_empty = match members.get_mut(table) {
            Some(Value::Object(entries)) => {
                entries.shift_remove(name);
                entries.is_empty()
            }
            Some(Value::Array(items)) => {
                items.retain(|item| read::name_of(item) != Some(name));
                items.is_empty()
            }
            Some(Value::Null) => true,
            _ => false,
        };
        if is_empty {
            members.shift_remove(table);
        }
    }
    root
}
