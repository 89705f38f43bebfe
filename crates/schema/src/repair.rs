//! Repairs of single values: wrong types, wrong names, wrong case, at every depth that the schema
//! describes.
//!
//! A value is changed only where it cannot be right as it stands and has one meaning that can. What
//! can be right `judge` says; the whole is judged by the real validator afterwards. Work is bounded
//! by a number of steps; where they run out, nothing is changed.

use std::{borrow::Cow, cell::Cell, collections::BTreeSet, fmt};

use jsonschema::Draft;
use serde_json::{Map, Value, json};

use nonet_base::text::clip;

use super::{
    alike::{alike, is_other_case, is_other_number, is_written_apart},
    judge::options,
    limits,
    places::takes_only_text,
    readings::{from_text, is_wrapper},
    signature::{properties, required},
};

/// How many looks at a subschema one walk over params takes at most.
const MAX_STEPS: u32 = 100_000;
/// How deep a walk goes, subschemas for the same value counted too.
pub(super) const MAX_DEPTH: usize = 64;
/// The largest number whose neighbours are numbers of their own, however it is written.
const MAX_SAFE: f64 = 9_007_199_254_740_992.0;

/// How many values there are in `value`, itself counted.
pub(super) fn values(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(values).sum::<usize>(),
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        _ => 1,
    }
}
/// A key without case and separators.
pub fn bare(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}
/// Whether a value is an object, or text that holds one.
fn holds_object(value: &Value) -> bool {
    value.is_object() || value.as_str().and_then(from_text).is_some_and(|(inner, _)| inner.is_object())
}
/// Whether a value can be meant as JSON text. A list of one may be meant as that one.
fn is_structure(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(items) => !matches!(&items[..], [only] if !is_structure(only)),
        _ => false,
    }
}
/// Where a value is, written only when something is told of it.
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
/// What is done only where nothing else makes sense.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    None,
    /// Text with commas is a list.
    Commas,
    /// An object or an array is text, where a tool takes only text.
    Text,
}
/// One walk over params.
pub(super) struct Repair<'a> {
    pub(super) root: &'a Value,
    /// The last resort that is open.
    last: Last,
    /// Whether 5.0 is no integer.
    pub(super) draft4: bool,
    /// Whether nothing beside a reference counts, as before 2019-09.
    pub(super) lone_references: bool,
    /// Whether tuples are in `prefixItems`, as since 2020-12.
    pub(super) prefix_items: bool,
    pub(super) left: Cell<u32>,
}
impl<'a> Repair<'a> {
    pub(super) fn new(root: &'a Value, last: Last) -> Self {
        let draft = limits::draft(root);
        Self {
            root,
            last,
            draft4: draft == Draft::Draft4,
            lone_references: matches!(draft, Draft::Draft4 | Draft::Draft6 | Draft::Draft7),
            prefix_items: draft == Draft::Draft202012,
            left: Cell::new(MAX_STEPS),
        }
    }

    /// Counts work. Whether there was any left for it.
    pub(super) fn spend(&self, steps: usize) -> bool {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.left.set(self.left.get().saturating_sub(steps));
        self.left.get() > 0
    }

    /// Params, repaired as far as that is possible, and what was done.
    pub(super) fn params(&self, fields: &Map<String, Value>, notes: &mut Vec<String>) -> Map<String, Value> {
        let whole = Value::Object(fields.clone());
        match self.value(self.root, &whole, Path::Top, notes, 0).into_owned() {
            Value::Object(repaired) => repaired,
            _ => fields.clone(),
        }
    }

    /// `value` as it may have been meant, which is as it stands unless something is told of it.
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
        let mut keep = |candidate: Value, told: Vec<String>| {
            if self.left.get() > 0
                && self.fits(schema, &candidate, depth)
                && !found.iter().any(|(other, _)| *other == candidate)
            {
                found.push((candidate, told));
            }
        };
        if self.last == Last::Text
            && is_structure(value)
            && !matches!(path, Path::Top)
            && self.spend(values(value))
            && takes_only_text(self.root, &path.steps())
        {
            let told = format!("`{path}`: it takes text, so the value was put in as JSON text");
            keep(Value::String(value.to_string()), vec![told]);
        }
        for (candidate, what) in self.other_types(&views, &out) {
            let mut told = vec![format!("`{path}`: {what}")];
            let whole = self.value(schema, &candidate, path, &mut told, depth + 1).into_owned();
            keep(whole, told);
        }
        // Each branch may copy all of the value.
        let size = values(&out) / 4;
        for branch in branches(&views) {
            if !self.spend(size) {
                break;
            }
            let mut told = Vec::new();
            let whole = self.value(branch, &out, path, &mut told, depth + 1);
            if !told.is_empty() && self.fits(branch, &whole, depth) {
                keep(whole.into_owned(), told);
            }
        }
        if found.len() == 1
            && let Some((only, told)) = found.pop()
        {
            notes.extend(told);
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
                    None => match misnamed {
                        Some((other, name)) if other == key => (name, own(name)),
                        _ => (key.as_str(), others),
                    },
                },
            };
            let at = Path::Field(&path, name);
            let Some(schema) = schema else {
                // A field that the tool does not know, and that says nothing.
                let nothing = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if closed && nothing {
                    notes.push(format!("`{at}`: the tool does not take it; {value} was left out"));
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

    /// The only property whose name is `key` but for case and separators, if nobody else means it.
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

    /// The field that is given under another name: the only required one that is missing, and a key that the schema does not
    /// know, whose value has its type. The names have to be alike.
    fn misnamed<'f>(
        &self,
        views: &[&'a Value],
        fields: &'f Map<String, Value>,
        needed: &BTreeSet<&'a str>,
        depth: usize,
    ) -> Option<(&'f str, &'a str)> {
        let own = || views.iter().filter_map(|view| properties(view)).flatten();
        if !self.spend(own().count() + fields.len() * needed.len()) {
            return None;
        }
        let given = |name: &str| fields.keys().any(|key| key == name || bare(key) == bare(name));
        let mut missing = needed.iter().filter(|name| !given(name));
        let (Some(missing), None) = (missing.next(), missing.next()) else { return None };
        let (missing, schema) = own().find(|(name, _)| name == missing)?;
        let unknown: Vec<(&String, &Value)> = fields
            .iter()
            .filter(|(key, _)| !own().any(|(name, _)| name == *key || bare(name) == bare(key)))
            .collect();
        let takes = |(key, value): &(&String, &Value)| {
            self.takes(schema, value, depth) && !(is_wrapper(key) && holds_object(value))
        };
        let absent: Vec<&String> =
            own().map(|(name, _)| name).filter(|name| *name != missing && !given(name)).collect();
        let meant = |key: &str| alike(key, missing) && !absent.iter().any(|other| alike(key, other));
        let mut close = unknown.iter().filter(|one| meant(one.0) && takes(one));
        match (close.next(), close.next()) {
            (Some((key, _)), None) => Some((key.as_str(), missing.as_str())),
            _ => None,
        }
    }

    /// Whether the schema names the type of `value`, and takes it.
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

    /// A value of the wrong type in the types that the schema takes, as far as it has a meaning
    /// there.
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
                    if self.last == Last::Commas && plain.contains(',') {
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
            found.push((number, "the number was taken as whole".into()));
        }
        if allows("array") && matches!(value, Value::Number(_) | Value::Bool(_) | Value::Object(_)) {
            found.push((json!([value]), "one value was taken as a list of one".into()));
        }
        found
    }

    /// JSON in a string; reading it counts as work.
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
/// The branches of which one has to fit.
pub(super) fn branches<'a>(views: &[&'a Value]) -> impl Iterator<Item = &'a Value> {
    views.iter().flat_map(|view| {
        let lists = ["anyOf", "oneOf"].into_iter().filter_map(|key| view.get(key)?.as_array());
        lists.flatten().collect::<Vec<_>>()
    })
}
/// The number that a text is.
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
/// A number without a fraction, as an integer.
fn whole(value: &Value) -> Option<Value> {
    if value.is_i64() || value.is_u64() {
        return Some(value.clone());
    }
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < MAX_SAFE)?;
    #[allow(clippy::cast_possible_truncation)] // whole, and below 2^53
    let number = number as i64;
    Some(json!(number))
}
