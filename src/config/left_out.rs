//! Servers of the file that are left out for faults of their own, so that they can be shown with what to do about it.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;

use super::{
    ConfigFault,
    read::{Written, join},
};
use crate::text::clip;

/// Faults that one sentence names; `nonet check` has them all.
const TOLD: usize = 3;
/// The longest sentence, in characters.
const LONGEST: usize = 1_000;

/// A server that cannot be used until its table is put right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// What the server is for; empty where the file does not say so in plain text.
    pub description: String,
    /// What is wrong in its table; never empty.
    pub faults: Vec<ConfigFault>,
}

impl LeftOut {
    /// Returns what is wrong, where, and what to do. Holds no value of a variable, as no fault does.
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
            let _ = write!(why, "`nonet check` tells the rest, {} more.", self.faults.len() - TOLD);
        }
        clip(why.trim_end(), LONGEST)
    }
}

/// Returns the servers that are wanted and have a fault, by the name that the file gives them.
pub(super) fn left_out(written: &Written, faults: &[ConfigFault]) -> BTreeMap<String, LeftOut> {
    let servers = written.value.get("servers").and_then(Value::as_object).into_iter().flatten();
    let wanted = servers.filter(|(_, table)| table.get("enabled") != Some(&Value::Bool(false)));
    let all = wanted.map(|(name, table)| {
        let pointer = join("/servers", name);
        let entry = written.entry(&pointer);
        let about = table.get("description").and_then(Value::as_str).unwrap_or_default();
        let is_plain = written.is_showable(&join(&pointer, "description"));
        let description = if is_plain { about.into() } else { String::new() };
        let faults = faults.iter().filter(|fault| fault.entry == entry).cloned().collect();
        (name.clone(), LeftOut { description, faults })
    });
    all.filter(|(_, left_out)| !left_out.faults.is_empty()).collect()
}
