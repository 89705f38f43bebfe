//! The variables and secrets that a servers.toml names, and where.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

use super::{FileFormat, HostFault, names::Reference, read, servers::references_in, text::Text};

/// A variable or a secret that servers.toml names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSecret {
    /// Its name.
    pub name: String,
    /// Whether it is named as `${keyring:NAME}`, and not as `${NAME}`.
    pub in_keyring: bool,
    /// Whether it has a default wherever it is named.
    pub has_default: bool,
    /// The entries that name it, such as `servers.github`.
    pub used_by: Vec<String>,
}

/// Returns what a servers.toml names, by name. A missing file names nothing.
pub fn named_secrets(servers_toml: &Path) -> Result<Vec<NamedSecret>, HostFault> {
    let root = read::value(Text::read(servers_toml)?.plain(), FileFormat::Toml, servers_toml)?;
    let mut found: BTreeMap<(String, bool), (bool, Vec<String>)> = BTreeMap::new();
    for (table, value) in root.as_object().into_iter().flatten() {
        let entries = value.as_object().into_iter().flatten();
        let is_of_entries = value.as_object().is_some_and(|entries| entries.values().all(Value::is_object));
        let parts: Vec<(String, &Value)> = match is_of_entries {
            true => entries.map(|(name, entry)| (format!("{table}.{name}"), entry)).collect(),
            false => vec![(table.clone(), value)],
        };
        for (entry, value) in parts {
            references_in(value, &mut |reference, has_default| {
                let in_keyring = matches!(reference, Reference::Keyring(_));
                let named = found.entry((reference.name().to_string(), in_keyring));
                let (has_defaults, used_by) = named.or_insert((true, Vec::new()));
                *has_defaults &= has_default;
                if !used_by.contains(&entry) {
                    used_by.push(entry.clone());
                }
            });
        }
    }
    let named = found.into_iter().map(|((name, in_keyring), (has_default, used_by))| NamedSecret {
        name,
        in_keyring,
        has_default,
        used_by,
    });
    Ok(named.collect())
}
