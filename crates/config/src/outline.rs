//! What a text of servers.toml would start, for a user who decides whether to trust the file.
//!
//! Nothing is checked or expanded: even a faulty file has an outline, and the user sees what is written.

use std::collections::BTreeSet;

use toml_edit::{Document, Item, Value as Toml};

use super::expand::{TextPiece, pieces};

/// The keys of addresses and documents that need not contain `://`.
const PLACES: [&str; 4] = ["url", "openapi", "base_url", "webhook"];
/// The tables whose entries are shown one by one.
const TABLES_OF_ENTRIES: [&str; 3] = ["servers", "apps", "secrets"];

/// What one entry of the file would start or contact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutlineEntry {
    /// The entry, such as `servers.files` or `gateway`.
    pub entry: String,
    /// The variables that a program gets from the file.
    pub env: Vec<(String, String)>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The addresses and documents.
    pub places: Vec<String>,
    /// The names of the environment's variables and the keyring's secrets that the entry uses.
    pub variables: BTreeSet<String>,
}

/// Returns the outline of a text; none if the text is not TOML. Entries that start, contact and use nothing
/// are left out.
pub fn outline(text: &str) -> Option<Vec<OutlineEntry>> {
    let document = Document::parse(text).ok()?;
    let mut entries = Vec::new();
    for (table, item) in document.as_table() {
        let inner = item.as_table_like().filter(|_| TABLES_OF_ENTRIES.contains(&table));
        match inner {
            Some(inner) => entries.extend(inner.iter().map(|(name, item)| {
                OutlineEntry { entry: format!("{table}.{name}"), ..OutlineEntry::default() }
                    .with("", "", item)
            })),
            None => {
                entries
                    .push(OutlineEntry { entry: table.into(), ..OutlineEntry::default() }.with("", "", item));
            }
        }
    }
    entries
        .retain(|entry| !entry.command.is_empty() || !entry.places.is_empty() || !entry.variables.is_empty());
    Some(entries)
}

impl OutlineEntry {
    /// Adds what a part of the entry says. `table` and `key` are the names of the part and of the table that
    /// it is in.
    fn with(mut self, table: &str, key: &str, item: &Item) -> Self {
        match item {
            Item::None => {}
            Item::Value(value) => self.add(table, key, value),
            Item::Table(inner) => {
                for (name, item) in inner {
                    self = self.with(key, name, item);
                }
            }
            Item::ArrayOfTables(tables) => {
                for (name, item) in tables.iter().flatten() {
                    self = self.with(key, name, item);
                }
            }
        }
        self
    }

    fn add(&mut self, table: &str, key: &str, value: &Toml) {
        match value {
            Toml::String(text) => self.add_text(table, key, text.value()),
            Toml::Array(words) if key == "command" => {
                for word in words.iter().filter_map(Toml::as_str) {
                    names(word, &mut self.variables);
                    self.command.push(word.into());
                }
            }
            Toml::Array(values) => values.iter().for_each(|value| self.add(table, key, value)),
            Toml::InlineTable(inner) => inner.iter().for_each(|(name, value)| self.add(key, name, value)),
            _ => {}
        }
    }

    fn add_text(&mut self, table: &str, key: &str, text: &str) {
        names(text, &mut self.variables);
        if table == "env" {
            self.env.push((key.into(), text.into()));
        } else if key == "command" && table.is_empty() {
            // The arguments may be written first.
            self.command.insert(0, text.into());
        } else if key == "command" || key == "args" {
            self.command.push(text.into());
        } else if key == "inherit_env" {
            self.variables.insert(text.into());
        } else if PLACES.contains(&key) || text.contains("://") && key != "description" {
            self.places.push(text.into());
        }
    }
}

/// Collects the variables and secrets of a text.
fn names(text: &str, into: &mut BTreeSet<String>) {
    for piece in pieces(text) {
        match piece {
            TextPiece::Variable { name, default } => {
                into.insert(name.into());
                default.into_iter().for_each(|default| names(default, into));
            }
            TextPiece::Keyring(name) => drop(into.insert(format!("keyring:{name}"))),
            // The program is listed by itself.
            TextPiece::Plain(_) | TextPiece::Malformed | TextPiece::Secret { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_names_every_program_address_and_variable() {
        let text = "[gateway]\ninherit_env = ['AWS_*']\nnotify = { command = ['~/bin/tell', '${TOPIC}'] }\nleaks = 'tell'\n\
            [servers.files]\nargs = ['-y', 'files']\ncommand = 'npx'\nenv = { NODE_OPTIONS = '-r ./x.js', T = '${A:-${B}}' }\n\
            [servers.docs]\nurl = 'https://docs.example'\nheaders = { Authorization = 'Bearer ${keyring:DOCS}' }\n\
            [servers.shop]\nopenapi = 'shop.yaml'\nfaulty_key = 3\n\
            [policies.no]\ntools = ['a.*']\n\
            [apps.x]\ndescription = 'x'\nmodel = { base_url = 'http://m', api_key = '${KEY}' }\n";
        let shown: Vec<String> = outline(text)
            .expect("TOML")
            .iter()
            .map(|one| {
                let env: Vec<_> = one.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let variables: Vec<_> = one.variables.iter().map(String::as_str).collect();
                let parts = [env.join(" "), one.command.join(" "), one.places.join(" "), variables.join(" ")];
                format!("{}: {}", one.entry, parts.join(" | "))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "gateway:  | ~/bin/tell ${TOPIC} |  | AWS_* TOPIC",
                "servers.files: NODE_OPTIONS=-r ./x.js T=${A:-${B}} | npx -y files |  | A B",
                "servers.docs:  |  | https://docs.example | keyring:DOCS",
                "servers.shop:  |  | shop.yaml | ",
                "apps.x:  |  | http://m | KEY",
            ]
        );
        assert_eq!(outline("[servers"), None);
        assert_eq!(outline("x = 1"), Some(Vec::new()));
    }
}
