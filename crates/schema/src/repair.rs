//! Repairs of single values: wrong types, names and case, at each depth that the schema describes.
//!
//! A value is changed only if it cannot be valid as it is and exactly one change makes it valid. `judge`
//! decides what can be valid; the real validator then checks the whole. A step limit bounds the work; when it
//! is reached, nothing is changed.

use std::{borrow::Cow, cell::Cell, collections::BTreeSet, fmt};

use jsonschema::Draft;
use nonet_base::text::clip;
use serde_json::{Map, Value, json};

use super::{
    alike::{alike, is_other_case, is_other_number, is_written_apart},
    judge::options,
    limits,
    places::takes_only_text,
    readings::{from_text, is_wrapper},
    signature::{properties, required},
};

/// The most subschema visits in one walk over params.
const MAX_STEPS: u32 = 100_000;
/// The depth limit of a walk, including subschemas for the same value.
pub(super) const MAX_DEPTH: usize = 64;
/// The largest integer up to which all are exact as a double.
const MAX_SAFE: f64 = 9_007_199_254_740_992.0;

/// Counts the values in `value`, including itself.
pub(super) fn values(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(values).sum::<usize>(),
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        _ => 1,
    }
}
/// Returns a key without case and separators.
pub fn bare(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}
/// Whether a value is an object, or text that holds one.
fn holds_object(value: &Value) -> bool {
    value.is_object() || value.as_str().and_then(from_text).is_some_and(|(inner, _)| inner.is_object())
}
/// Whether a value may be meant as JSON text. A list of one may mean its item.
fn is_structure(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(items) => !matches!(&items[..], [only] if !is_structure(only)),
        _ => false,
    }
}
/// The path of a value, rendered only for notes.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Top,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}
impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Top => f.write_str("params"),
            Path::Field(Path::Top, key) => f.write_str(&clip(key, 60)),
            Path::Field(above, key) => write!(f, "{above}.{}", clip(key, 60)),
            Path::Item(above, at) => write!(f, "{above}[{at}]"),
        }
    }
}
impl Path<'_> {
    fn steps(&self) -> Vec<String> {
        let (mut steps, step) = match self {
            Path::Top => return Vec::new(),
            Path::Field(above, key) => (above.steps(), (*key).to_string()),
            Path::Item(above, at) => (above.steps(), at.to_string()),
        };
        steps.push(step);
        steps
    }
}
/// Last resorts, tried only if nothing else fits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LastResort {
    None,
    /// Split text at commas into a list.
    Commas,
    /// Serialize an object or array, where a tool accepts only text.
    Text,
}
pub(super) struct Repair<'a> {
    pub(super) root: &'a Value,
    /// The last resort in use.
    last: LastResort,
    /// Whether several missing fields may have other names at once: the result is only suggested.
    suggests: bool,
    /// Whether 5.0 is not an integer.
    pub(super) draft4: bool,
    /// Whether siblings of a reference are ignored, as before 2019-09.
    pub(super) lone_references: bool,
    /// Whether tuples are in `prefixItems`, as since 2020-12.
    pub(super) prefix_items: bool,
    pub(super) left: Cell<u32>,
}
impl<'a> Repair<'a> {
    pub(super) fn new(root: &'a Value, last: LastResort) -> Self {
        let draft = limits::draft(root);
        Self {
            root,
            last,
            suggests: false,
            draft4: draft == Draft::Draft4,
            lone_references: matches!(draft, Draft::Draft4 | Draft::Draft6 | Draft::Draft7),
            prefix_items: draft == Draft::Draft202012,
            left: Cell::new(MAX_STEPS),
        }
    }

    /// Returns a repair whose result is suggested and not used.
    pub(super) fn suggesting(root: &'a Value) -> Self {
        Self { suggests: true, ..Self::new(root, LastResort::None) }
    }

    /// Spends steps. Returns whether enough were left.
    pub(super) fn spend(&self, steps: usize) -> bool {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.left.set(self.left.get().saturating_sub(steps));
        self.left.get() > 0
    }

    /// Repairs params as far as possible, with a note per change.
    pub(super) fn params(&self, fields: &Map<String, Value>, notes: &mut Vec<String>) -> Map<String, Value> {
        let whole = Value::Object(fields.clone());
        match self.value(self.root, &whole, Path::Top, notes, 0).into_owned() {
            Value::Object(repaired) => repaired,
            _ => fields.clone(),
        }
    }

    /// Returns the intended value: unchanged unless a note is added.
    fn value<'v>(
        &self,
        schema: &'a Value,
        value: &'v Value,
        path: Path<'_>,
        notes: &mut Vec<String>,
        depth: usize,
    ) -> Cow<'v, Value> {
        if depth > MAX_DEPTH || self.fits(schema, value, depth) {
            return Cow::Borrowed(value);
        }
        let views = self.views(schema);
        let before = notes.len();
        let mut out = Cow::Borrowed(value);
        match value {
            Value::Object(fields) if self.may_be(&views, "object") => {
                let inside = self.object(&views, fields, path, notes, depth);
                if notes.len() > before {
                    out = Cow::Owned(Value::Object(inside));
                }
            }
            Value::Array(items) if self.may_be(&views, "array") => {
                let inside = self.array(&views, items, path, notes, depth);
                if notes.len() > before {
                    out = Cow::Owned(Value::Array(inside));
                }
            }
            _ => {}
        }
        if notes.len() > before && self.fits(schema, &out, depth) {
            return out;
        }
        let mut found: Vec<(Value, Vec<String>)> = Vec::new();
        let mut keep = |candidate: Value, changes: Vec<String>| {
            if self.left.get() > 0
                && self.fits(schema, &candidate, depth)
                && !found.iter().any(|(other, _)| *other == candidate)
            {
                found.push((candidate, changes));
            }
        };
        if self.last == LastResort::Text
            && is_structure(value)
            && !matches!(path, Path::Top)
            && self.spend(values(value))
            && takes_only_text(self.root, &path.steps())
        {
            let change = format!("`{path}`: expects text, so the value was sent as JSON text");
            keep(Value::String(value.to_string()), vec![change]);
        }
        for (candidate, what) in self.other_types(&views, &out) {
            let mut changes = vec![format!("`{path}`: {what}")];
            let whole = self.value(schema, &candidate, path, &mut changes, depth + 1).into_owned();
            keep(whole, changes);
        }
        // Each branch may copy the whole value.
        let size = values(&out) / 4;
        for branch in branches(&views) {
            if !self.spend(size) {
                break;
            }
            let mut changes = Vec::new();
            let whole = self.value(branch, &out, path, &mut changes, depth + 1);
            if !changes.is_empty() && self.fits(branch, &whole, depth) {
                keep(whole.into_owned(), changes);
            }
        }
        if found.len() == 1
            && let Some((only, changes)) = found.pop()
        {
            notes.extend(changes);
            return Cow::Owned(only);
        }
        out
    }

    fn object(
        &self,
        views: &[&'a Value],
        fields: &Map<String, Value>,
        path: Path<'_>,
        notes: &mut Vec<String>,
        depth: usize,
    ) -> Map<String, Value> {
        let own = |key: &str| views.iter().find_map(|view| properties(view)?.get(key));
        let needed: BTreeSet<&str> = views.iter().flat_map(|view| required(view)).collect();
        let closed = views.iter().any(|view| view.get("additionalProperties") == Some(&Value::Bool(false)))
            && !views.iter().any(|view| view.get("patternProperties").is_some());
        let others =
            views.iter().find_map(|view| view.get("additionalProperties").filter(|it| it.is_object()));
        let misnamed = self.misnamed(views, fields, &needed, depth);
        let mut out = Map::new();
        for (key, value) in fields {
            let (name, schema) = match own(key) {
                Some(schema) => (key.as_str(), Some(schema)),
                None => match self.meant(views, fields, key) {
                    Some((name, schema)) => (name, Some(schema)),
                    None => match misnamed.iter().find(|(other, _)| other == key) {
                        Some((_, name)) => (*name, own(name)),
                        None => (key.as_str(), others),
                    },
                },
            };
            let at = Path::Field(&path, name);
            let Some(schema) = schema else {
                // An undeclared field without content.
                let nothing = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if closed && nothing {
                    notes.push(format!("`{at}`: not a param of the tool; {value} was left out"));
                } else {
                    out.insert(key.clone(), value.clone());
                }
                continue;
            };
            if name != key {
                notes.push(format!("`{}` was taken as `{at}`", Path::Field(&path, key)));
            }
            let absent = value.is_null() || value == "null";
            if absent && own(name).is_some() && !needed.contains(name) && !self.fits(schema, value, depth) {
                let null = self.fits(schema, &Value::Null, depth);
                let what = if value.is_null() { "null" } else { "text `null`" };
                if !null {
                    notes.push(format!("`{at}`: {what} was left out"));
                    continue;
                }
            }
            out.insert(name.into(), self.value(schema, value, at, notes, depth + 1).into_owned());
        }
        out
    }

    /// Returns the only property that equals `key` but for case and separators, if no other given key means
    /// it.
    fn meant(
        &self,
        views: &[&'a Value],
        fields: &Map<String, Value>,
        key: &str,
    ) -> Option<(&'a str, &'a Value)> {
        let names: usize = views.iter().filter_map(|view| properties(view)).map(Map::len).sum();
        if !self.spend(names + fields.len()) {
            return None;
        }
        let plain = bare(key);
        let all = views.iter().filter_map(|view| properties(view)).flatten();
        let mut same = all.filter(|(name, _)| bare(name) == plain);
        let (name, schema) = same.next()?;
        let rivals = fields.keys().filter(|other| bare(other) == plain).count();
        (rivals == 1 && same.all(|(other, _)| other == name)).then_some((name, schema))
    }

    /// Finds fields given under other names; several at once only to suggest them: each missing required
    /// field with the only undeclared key that has a similar name and a value of the right type, if that key
    /// is similar to no other absent field.
    fn misnamed<'f>(
        &self,
        views: &[&'a Value],
        fields: &'f Map<String, Value>,
        needed: &BTreeSet<&'a str>,
        depth: usize,
    ) -> Vec<(&'f str, &'a str)> {
        let own = || views.iter().filter_map(|view| properties(view)).flatten();
        if !self.spend(own().count() + fields.len() * needed.len()) {
            return Vec::new();
        }
        let given = |name: &str| fields.keys().any(|key| key == name || bare(key) == bare(name));
        let unknown: Vec<(&String, &Value)> = fields
            .iter()
            .filter(|(key, _)| !own().any(|(name, _)| name == *key || bare(name) == bare(key)))
            .collect();
        let absent: Vec<&String> = own().map(|(name, _)| name).filter(|name| !given(name)).collect();
        if !self.suggests && needed.iter().filter(|name| !given(name)).count() != 1 {
            return Vec::new();
        }
        let missing = own().filter(|(name, _)| needed.contains(name.as_str()) && !given(name));
        let renamed = missing.filter_map(|(missing, schema)| {
            if !self.spend(unknown.len() * absent.len()) {
                return None;
            }
            let takes = |(key, value): &(&String, &Value)| {
                self.takes(schema, value, depth) && !(is_wrapper(key) && holds_object(value))
            };
            let others = || absent.iter().filter(|other| **other != missing);
            let meant = |key: &str| alike(key, missing) && !others().any(|other| alike(key, other));
            let mut close = unknown.iter().filter(|one| meant(one.0) && takes(one));
            match (close.next(), close.next()) {
                (Some((key, _)), None) => Some((key.as_str(), missing.as_str())),
                _ => None,
            }
        });
        renamed.collect()
    }

    /// Whether the schema declares the type of `value` and accepts it.
    fn takes(&self, schema: &'a Value, value: &Value, depth: usize) -> bool {
        let kinds: &[&str] = match value {
            Value::Null => return false,
            Value::Bool(_) => &["boolean"],
            Value::Number(_) => &["integer", "number"],
            Value::String(_) => &["string"],
            Value::Array(_) => &["array"],
            Value::Object(_) => &["object"],
        };
        let views = self.views(schema);
        let stated = |views: &[&'a Value]| kinds.iter().any(|kind| self.allows(views, kind));
        (stated(&views) || branches(&views).any(|branch| stated(&self.views(branch))))
            && self.fits(schema, value, depth + 1)
    }

    fn array(
        &self,
        views: &[&'a Value],
        items: &[Value],
        path: Path<'_>,
        notes: &mut Vec<String>,
        depth: usize,
    ) -> Vec<Value> {
        let repaired = items.iter().enumerate().map(|(at, item)| {
            match views.iter().find_map(|view| self.item_schema(view, at)) {
                Some(schema) => {
                    self.value(schema, item, Path::Item(&path, at), notes, depth + 1).into_owned()
                }
                None => item.clone(),
            }
        });
        repaired.collect()
    }

    /// Converts a value of the wrong type into the accepted types that can represent it.
    fn other_types(&self, views: &[&'a Value], value: &Value) -> Vec<(Value, String)> {
        let allows = |kind| self.allows(views, kind);
        let mut found = Vec::new();
        match value {
            Value::String(text) => {
                let plain = text.trim();
                if allows("number")
                    && let Some(number) = number(plain)
                {
                    found.push((number, "text was taken as a number".into()));
                } else if allows("integer")
                    && let Some(number) = number(plain).and_then(|number| whole(&number))
                {
                    found.push((number, "text was taken as a number".into()));
                }
                if allows("boolean")
                    && let Ok(flag) = plain.to_ascii_lowercase().parse::<bool>()
                {
                    found.push((json!(flag), "text was taken as a boolean".into()));
                }
                if allows("null") && plain == "null" {
                    found.push((Value::Null, "text was taken as null".into()));
                }
                let listed: Vec<&str> = options(views).filter_map(Value::as_str).collect();
                let ways: [fn(&str, &str) -> bool; 3] = [is_other_case, is_written_apart, is_other_number];
                let way = ways.iter().find(|way| listed.iter().any(|option| way(option, plain)));
                for option in listed {
                    if option != text && way.is_some_and(|way| way(option, plain)) {
                        let what = format!("`{}` was taken as `{}`", clip(text, 40), clip(option, 40));
                        found.push((json!(option), what));
                    }
                }
                let inner = self
                    .json(plain)
                    .filter(|inner| allows("object") || (allows("array") && !inner.is_string()));
                if let Some(inner) = inner {
                    found.push((inner, "JSON in a string was read".into()));
                } else if allows("array") && !plain.starts_with(['[', '{']) {
                    if self.last == LastResort::Commas && plain.contains(',') {
                        let parts: Vec<&str> = plain.split(',').map(str::trim).collect();
                        found.push((json!(parts), "text was split at its commas".into()));
                    } else {
                        found.push((json!([value]), "one value was taken as a list of one".into()));
                    }
                }
            }
            Value::Number(_) | Value::Bool(_) if allows("string") => {
                found.push((json!(value.to_string()), "the value was taken as text".into()));
            }
            _ => {}
        }
        if let Value::Number(_) = value
            && allows("integer")
            && let Some(number) = whole(value)
        {
            found.push((number, "the number was taken as an integer".into()));
        }
        if allows("array") && matches!(value, Value::Number(_) | Value::Bool(_) | Value::Object(_)) {
            found.push((json!([value]), "one value was taken as a list of one".into()));
        }
        found
    }

    /// Parses JSON in a string; this counts as work.
    fn json(&self, text: &str) -> Option<Value> {
        if !text.starts_with(['{', '[', '`']) {
            return None;
        }
        if !self.spend(text.len() / 64) {
            return None;
        }
        from_text(text).map(|(inner, _)| inner)
    }
}
/// Returns the branches of which one must fit.
pub(super) fn branches<'a>(views: &[&'a Value]) -> impl Iterator<Item = &'a Value> {
    views.iter().flat_map(|view| {
        let lists = ["anyOf", "oneOf"].into_iter().filter_map(|key| view.get(key)?.as_array());
        lists.flatten().collect::<Vec<_>>()
    })
}
/// Parses text as a number.
fn number(text: &str) -> Option<Value> {
    if let Ok(number) = text.parse::<i64>() {
        return Some(json!(number));
    }
    if let Ok(number) = text.parse::<u64>() {
        return Some(json!(number));
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && number.abs() < MAX_SAFE)?;
    text.contains(|c: char| c.is_ascii_digit()).then(|| json!(number))
}
/// Returns a number without a fraction as an integer.
fn whole(value: &Value) -> Option<Value> {
    if value.is_i64() || value.is_u64() {
        return Some(value.clone());
    }
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < MAX_SAFE)?;
    let number = number as i64;
    Some(json!(number))
}
