//! Servers and apps left out because of faults in their tables, with the remedies.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use nonet_base::text::clip;
use serde_json::Value;

use super::{
    ConfigFault,
    read::{ConfigSource, join},
};

/// How many faults one sentence names; `nonet check` lists all.
const TOLD: usize = 3;
/// The longest sentence, in characters.
const LONGEST: usize = 1_000;

/// A server or an app that is unusable until its table is fixed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnusableEntry {
    /// The purpose of the entry; empty if the file does not state it in plain text.
    pub description: String,
    /// The faults of its table; never empty.
    pub faults: Vec<ConfigFault>,
}

impl UnusableEntry {
    /// Returns only the problems, without places and remedies.
    pub fn brief(&self) -> String {
        let messages: BTreeSet<&str> = self.faults.iter().map(|fault| fault.message.as_str()).collect();
        messages.into_iter().collect::<Vec<_>>().join("; ")
    }

    /// Returns the values that the entry needs and does not have, by name: whether each is a secret of the
    /// keyring, rather than a variable.
    pub fn missing(&self) -> BTreeMap<&str, bool> {
        let variables = self.faults.iter().flat_map(ConfigFault::unset_variables).map(|name| (name, false));
        let secrets = self.faults.iter().flat_map(ConfigFault::absent_secrets).map(|name| (name, true));
        secrets.chain(variables).collect()
    }

    /// Returns the problems, places and remedies. Like every fault, the text contains no variable's value.
    pub fn why(&self) -> String {
        let mut why = String::new();
        for fault in self.faults.iter().take(TOLD) {
            let file = fault.file.file_name().unwrap_or_default().to_string_lossy();
            let _ = write!(
                why,
                "Line {} of {file}, `{}`: {}. {} ",
                fault.line, fault.key, fault.message, fault.remedy
            );
        }
        if self.faults.len() > TOLD {
            let _ = write!(why, "`nonet check` reports {} more.", self.faults.len() - TOLD);
        }
        clip(why.trim_end(), LONGEST)
    }
}

/// Returns the enabled entries of a table such as `servers` with faults, by their names in the file.
pub(super) fn left_out(
    written: &ConfigSource,
    faults: &[ConfigFault],
    table: &str,
) -> BTreeMap<String, UnusableEntry> {
    let entries = written.value.get(table).and_then(Value::as_object).into_iter().flatten();
    let parent = join("", table);
    let wanted = entries.filter(|(_, table)| table.get("enabled") != Some(&Value::Bool(false)));
    let all = wanted.map(|(name, table)| {
        let pointer = join(&parent, name);
        let entry = written.entry(&pointer);
        let about = table.get("description").and_then(Value::as_str).unwrap_or_default();
        let is_plain = written.is_showable(&join(&pointer, "description"));
        let description = if is_plain { about.into() } else { String::new() };
        let faults = faults.iter().filter(|fault| fault.entry == entry).cloned().collect();
        (name.clone(), UnusableEntry { description, faults })
    });
    all.filter(|(_, left_out)| !left_out.faults.is_empty()).collect()
}
