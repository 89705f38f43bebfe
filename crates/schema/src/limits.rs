//! The cost of a server's schema, estimated before compiling it.
//!
//! Servers are not trusted: a schema can make the check of a small value take forever. From the text of a
//! schema alone, this module refuses what has no bound and says of the rest whether checking is certainly
//! cheap or must be watched.

use std::collections::{BTreeSet, HashMap};

use jsonschema::Draft;
use serde_json::Value;

/// The longest schema text, in bytes, about.
const MAX_BYTES: usize = 1_000_000;
/// The deepest nesting of a schema.
const MAX_NESTING: usize = 100;
/// The most subschemas that may judge the same value.
const MAX_IN_PLACE: u64 = 10_000;
/// The longest chain of subschemas for the same value.
const MAX_CHAIN: u64 = 100;
/// The most subschemas in a simple schema, each counted once per path to it.
const SIMPLE_TOTAL: u64 = 2_000;
/// The longest chain of subschemas, including references into properties and items. Visiting one takes some
/// stack.
const MAX_PATH: u64 = 1_000;
/// The most distinct patterns with a counted repetition: each may compile to the limit of one pattern.
const MAX_COUNTED: usize = 64;
/// The most repetitions in a simple pattern.
const SIMPLE_REPEATS: u64 = 1_000;

/// The cost of checking a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CheckCost {
    /// At most this many subschemas per part of the value.
    Simple(u64),
    /// Unknown in advance.
    Open,
}

/// Keywords with one schema, a list, and a map of schemas for the same value.
const SAME_ONE: [&str; 4] = ["not", "if", "then", "else"];
const SAME_LIST: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SAME_MAP: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords with one schema, a list, and a map of schemas for parts of the value.
const PART_ONE: [&str; 8] = [
    "items",
    "additionalItems",
    "contains",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "contentSchema",
];
const PART_LIST: [&str; 2] = ["prefixItems", "items"];
const PART_MAP: [&str; 2] = ["properties", "patternProperties"];

/// Returns the cost of checking against `schema`, or why it must not be tried. In messages, `it` is the
/// schema.
pub(super) fn examine(schema: &Value) -> Result<CheckCost, String> {
    let mut bytes = 0;
    measure(schema, 0, &mut bytes)?;
    if any_below(schema, &|part| part.get("$ref").is_some_and(Value::is_string)) {
        // References in there would not resolve from the root, as all others do.
        let id = if draft(schema) == Draft::Draft4 { "id" } else { "$id" };
        let own = |part: &Value| {
            part.get(id).and_then(Value::as_str).is_some_and(|id| !id.starts_with('#'))
                && !std::ptr::eq(part, schema)
        };
        if any_below(schema, &own) {
            return Err("it has references, and a subschema with its own `$id`".into());
        }
    }
    let mut survey = Survey::new(schema);
    let found = survey.all(schema, 0)?;
    let open = survey.open || found.count > SIMPLE_TOTAL || found.longest > MAX_CHAIN;
    Ok(if open { CheckCost::Open } else { CheckCost::Simple(found.count) })
}

/// Returns the dialect of a schema. MCP defaults to 2020-12; an unknown dialect is most likely another name
/// for it.
pub(super) fn draft(schema: &Value) -> Draft {
    match schema.get("$schema").and_then(Value::as_str).map(Draft::from_schema_uri) {
        None | Some(Draft::Unknown) => Draft::Draft202012,
        Some(known) => known,
    }
}

fn any_below(value: &Value, wanted: &dyn Fn(&Value) -> bool) -> bool {
    match value {
        Value::Object(fields) => wanted(value) || fields.values().any(|field| any_below(field, wanted)),
        Value::Array(items) => items.iter().any(|item| any_below(item, wanted)),
        _ => false,
    }
}

/// Adds up the length of the text without serializing it.
fn measure(value: &Value, depth: usize, bytes: &mut usize) -> Result<(), String> {
    if depth > MAX_NESTING {
        return Err(format!("the schema nests deeper than {MAX_NESTING} levels"));
    }
    *bytes += 4;
    match value {
        Value::String(text) => *bytes += text.len(),
        Value::Array(items) => {
            for item in items {
                measure(item, depth + 1, bytes)?;
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                *bytes += key.len() + 4;
                measure(field, depth + 1, bytes)?;
            }
        }
        _ => {}
    }
    if *bytes > MAX_BYTES {
        return Err(format!("the schema is longer than {MAX_BYTES} bytes"));
    }
    Ok(())
}

/// Resolves a local reference in `root`: `#`, `#/a/b`, or `#anchor`.
pub(super) fn local<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let own =
        ["$id", "id"].iter().find_map(|key| root.get(*key)?.as_str()).map(|id| id.trim_end_matches('#'));
    let fragment = match (reference.split_once('#'), own) {
        (Some(("", fragment)), _) => fragment,
        (Some((document, fragment)), Some(own)) if document == own => fragment,
        (None, Some(own)) if reference == own => "",
        _ => return None,
    };
    let fragment = decoded(fragment)?;
    if fragment.is_empty() || fragment.starts_with('/') {
        return root.pointer(&fragment);
    }
    anchored(root, &fragment)
}

/// Decodes percent-encoding such as `%20`.
fn decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_string());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

fn anchored<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => {
            let is = |key: &str, prefix: &str| {
                fields.get(key).and_then(Value::as_str).and_then(|id| id.strip_prefix(prefix)) == Some(name)
            };
            if is("$anchor", "") || is("$id", "#") || is("id", "#") {
                return Some(value);
            }
            fields.values().find_map(|field| anchored(field, name))
        }
        Value::Array(items) => items.iter().find_map(|item| anchored(item, name)),
        _ => None,
    }
}

/// A subschema and what is reachable from it. Numbers saturate.
#[derive(Clone, Copy)]
struct SubschemaCount {
    /// The number of subschemas, each counted once per path to it.
    count: u64,
    /// The longest chain of them.
    longest: u64,
}

impl SubschemaCount {
    const ONE: Self = Self { count: 1, longest: 1 };

    fn add(&mut self, below: Self) {
        self.count = self.count.saturating_add(below.count);
        self.longest = self.longest.max(below.longest.saturating_add(1));
    }
}

/// Subschemas by address; `None` while one is being visited.
type VisitedSchemas = HashMap<*const Value, Option<SubschemaCount>>;

struct Survey<'a> {
    root: &'a Value,
    /// Subschemas for the same value.
    same: VisitedSchemas,
    /// Subschemas for the same value and for its parts.
    all: VisitedSchemas,
    counted: BTreeSet<&'a str>,
    open: bool,
}

impl<'a> Survey<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            same: VisitedSchemas::new(),
            all: VisitedSchemas::new(),
            counted: BTreeSet::new(),
            open: false,
        }
    }

    fn all(&mut self, schema: &'a Value, depth: u64) -> Result<SubschemaCount, String> {
        let Value::Object(fields) = schema else { return Ok(SubschemaCount::ONE) };
        let place = std::ptr::from_ref(schema);
        match self.all.get(&place) {
            Some(Some(known)) => return Ok(*known),
            // Recursive through a part of the value; `same` has refused other recursion.
            Some(None) => {
                self.open = true;
                return Ok(SubschemaCount::ONE);
            }
            None => {}
        }
        if depth > MAX_PATH {
            return Err("its chain of references is too long".into());
        }
        self.all.insert(place, None);
        self.same(schema, 0)?;
        let mut found = SubschemaCount::ONE;
        for child in self.neighbours(schema)?.into_iter().chain(parts(schema)) {
            found.add(self.all(child, depth + 1)?);
        }
        let keys = fields.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        for pattern in keys.map(|(key, _)| key.as_str()).chain(fields.get("pattern").and_then(Value::as_str))
        {
            self.pattern(pattern)?;
        }
        // These keywords check again what their siblings checked.
        self.open |= fields.contains_key("unevaluatedProperties") || fields.contains_key("unevaluatedItems");
        self.all.insert(place, Some(found));
        Ok(found)
    }

    fn same(&mut self, schema: &'a Value, depth: u64) -> Result<SubschemaCount, String> {
        if !schema.is_object() {
            return Ok(SubschemaCount::ONE);
        }
        let place = std::ptr::from_ref(schema);
        match self.same.get(&place) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => {
                return Err("a reference leads back to itself without descending into the value".into());
            }
            None => {}
        }
        let too_long = || format!("its subschemas form a chain of more than {MAX_CHAIN}");
        if depth > MAX_CHAIN {
            return Err(too_long());
        }
        self.same.insert(place, None);
        let mut found = SubschemaCount::ONE;
        for child in self.neighbours(schema)? {
            found.add(self.same(child, depth + 1)?);
        }
        if found.longest > MAX_CHAIN {
            return Err(too_long());
        }
        if found.count > MAX_IN_PLACE {
            return Err(format!("it expands to more than {MAX_IN_PLACE} subschemas for one value"));
        }
        self.same.insert(place, Some(found));
        Ok(found)
    }

    /// Returns the subschemas for the same value, following references.
    fn neighbours(&mut self, schema: &'a Value) -> Result<Vec<&'a Value>, String> {
        for unbounded in ["$dynamicRef", "$recursiveRef"] {
            if schema.get(unbounded).is_some() {
                return Err(format!("it uses `{unbounded}`"));
            }
        }
        let mut found: Vec<&Value> = SAME_ONE.iter().filter_map(|key| schema.get(*key)).collect();
        found.extend(SAME_LIST.iter().filter_map(|key| schema.get(*key)?.as_array()).flatten());
        let maps = SAME_MAP.iter().filter_map(|key| schema.get(*key)?.as_object());
        found.extend(maps.flat_map(|map| map.values()));
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            // An anchor may be ambiguous, which is not resolved here.
            self.open |= !(reference == "#" || reference.starts_with("#/"));
            match local(self.root, reference) {
                Some(target) => found.push(target),
                None => {
                    let reference = nonet_base::text::clip(reference, 100);
                    return Err(format!(
                        "its reference `{reference}` points outside the schema, and is not fetched"
                    ));
                }
            }
        }
        Ok(found)
    }

    /// Adds the cost of a pattern.
    fn pattern(&mut self, pattern: &'a str) -> Result<(), String> {
        let repeats = repeats(pattern);
        if repeats > 1 && self.counted.insert(pattern) && self.counted.len() > MAX_COUNTED {
            return Err(format!("it has more than {MAX_COUNTED} patterns with counted repetitions"));
        }
        self.open |= repeats > SIMPLE_REPEATS || backtracks(pattern);
        Ok(())
    }
}

/// Returns the subschemas for parts of the value.
fn parts(schema: &Value) -> Vec<&Value> {
    let mut found: Vec<&Value> =
        PART_ONE.iter().filter_map(|key| schema.get(*key)).filter(|part| part.is_object()).collect();
    found.extend(PART_LIST.iter().filter_map(|key| schema.get(*key)?.as_array()).flatten());
    let maps = PART_MAP.iter().filter_map(|key| schema.get(*key)?.as_object());
    found.extend(maps.flat_map(|map| map.values()));
    found
}

/// Estimates the repetitions of a pattern: `{2,5}` is five; repeated groups multiply the sum of their parts.
fn repeats(pattern: &str) -> u64 {
    let (mut groups, mut others) = (1_u64, 0_u64);
    for (at, _) in pattern.match_indices('{') {
        let counts = pattern[at + 1..].split_once('}').map(|(counts, _)| counts).unwrap_or_default();
        let Some(most) = counts.rsplit(',').find_map(|count| count.parse::<u64>().ok()) else { continue };
        if pattern[..at].ends_with(')') {
            groups = groups.saturating_mul(most.max(1));
        } else {
            others = others.saturating_add(most);
        }
    }
    groups.saturating_mul(others.max(1))
}

/// Whether a pattern may need the engine with exponential time: look-around or back references. Plain groups
/// do not.
fn backtracks(pattern: &str) -> bool {
    let group = pattern.match_indices("(?").any(|(at, _)| !pattern[at + 2..].starts_with(':'));
    let escapes = pattern.as_bytes().windows(2);
    group || escapes.into_iter().any(|pair| pair[0] == b'\\' && matches!(pair[1], b'1'..=b'9' | b'k'))
}
