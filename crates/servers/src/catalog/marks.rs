//! Finds suspicious text in a definition: instructions to a model, and invisible characters.

use nonet_base::text;
use nonet_text::leaks::{Finding, Findings, KnownSecrets, MOST, Search};
use serde_json::Value;

use super::Tool;

/// The parts of a definition, as `get_tool` names them.
const PARTS: [(&str, &str); 5] = [
    ("title", "title"),
    ("description", "description"),
    ("inputSchema", "input_schema"),
    ("outputSchema", "output_schema"),
    ("annotations", "annotations"),
];

impl Tool {
    /// Returns the findings in its definition, computed once.
    pub fn marks(&self) -> &Findings {
        self.marks.get_or_init(|| {
            let mut findings = Findings::default();
            if self.is_of_server() || self.of.is_some() {
                for (key, place) in PARTS {
                    if let Some(part) = self.definition.get(key) {
                        mark(part, place, &mut findings);
                    }
                }
            }
            findings
        })
    }
}

/// Adds the findings in a part of a definition.
pub fn mark(part: &Value, place: &str, findings: &mut Findings) {
    let known = KnownSecrets::default();
    let search =
        Search { known: &known, keys: false, instructions: true, imitations: false, definition: true };
    let found = search.of_value(part);
    findings.mark_count += found.mark_count;
    let below = |inner: &str| match inner {
        "" => place.to_owned(),
        inner if inner.starts_with('[') => format!("{place}{inner}"),
        inner => format!("{place}.{inner}"),
    };
    findings.marks.extend(found.marks.into_iter().map(|mark| Finding { place: below(&mark.place), ..mark }));
    if let Some(kind) = hidden_in(part) {
        let is_told = findings.marks.iter().any(|mark| mark.what == kind);
        if !is_told {
            findings.mark_count += 1;
            findings.marks.push(Finding { what: kind, place: place.into(), text: String::new() });
        }
    }
    findings.marks.truncate(MOST);
}

/// Returns what kind of text a value hides, if any; the first one found.
fn hidden_in(value: &Value) -> Option<&'static str> {
    match value {
        Value::String(text) => text::hidden(text).next().map(|(_, _, kind)| kind.as_str()),
        Value::Array(items) => items.iter().find_map(hidden_in),
        Value::Object(fields) => fields.iter().find_map(|(key, item)| {
            text::hidden(key).next().map(|(_, _, kind)| kind.as_str()).or_else(|| hidden_in(item))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}
