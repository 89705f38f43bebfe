//! Other ways to read params: unwrapping them, and rearranging their fields.
//!
//! A wrapper is opened only if its siblings hold nothing of value. The number of readings is bounded: at most
//! `MAX_BASES` times three layouts, three times.

use nonet_base::text::clip;
use serde_json::{Map, Value};

use super::{
    CompiledSchema, Inner, ParamsMismatch, ValidParams,
    repair::{LastResort, Repair, bare},
    signature::{properties, required},
};

/// Names in which models wrap arguments, ignoring case and separators.
const WRAPPERS: [&str; 16] = [
    "params",
    "param",
    "arguments",
    "args",
    "input",
    "inputs",
    "parameters",
    "toolinput",
    "toolargs",
    "toolarguments",
    "toolparameters",
    "functionargs",
    "functioncall",
    "toolcall",
    "function",
    "kwargs",
];
/// Siblings of the arguments in a function call: the tool's name, and keys that say nothing about the params.
const CALLEES: [&str; 5] = ["name", "tool", "toolname", "functionname", "recipientname"];
const CALL_FIELDS: [&str; 7] = ["type", "id", "callid", "toolcallid", "index", "jsonrpc", "method"];
/// The most unwrappings tried.
const MAX_BASES: usize = 8;
/// The most repairs reported one by one.
const MAX_NOTES: usize = 20;

/// A value and the changes that led to it.
type ValueWithNotes<T> = (T, Vec<String>);

/// Whether models wrap arguments in a key of this name.
pub(super) fn is_wrapper(key: &str) -> bool {
    WRAPPERS.contains(&bare(key).as_str())
}

/// Reads the params of a tool with an unusable schema: only checks that they are an object.
pub(super) fn unchecked(given: Value) -> Result<ValidParams, ParamsMismatch> {
    let mut unwrapped = (given, Vec::new());
    for _ in 0..3 {
        match unwrapped {
            (Value::Object(params), repaired) => return Ok(ValidParams { params, repaired }),
            (Value::String(text), notes) => {
                let Some((inner, note)) = from_text(&text) else {
                    unwrapped = (Value::String(text), notes);
                    break;
                };
                unwrapped = (inner, with(&notes, note));
            }
            _ => break,
        }
    }
    let found = clip(&unwrapped.0.to_string(), 80);
    Err(ParamsMismatch {
        faults: vec![format!("params: {found} is not an object")],
        example: Map::new(),
        example_fits: false,
    })
}

impl Inner {
    /// Whether `value` fits a compiled schema.
    pub(super) fn fits(&self, value: &Value) -> bool {
        self.ready().is_none_or(|compiled| compiled.validator.is_valid(value))
    }

    pub(super) fn ready(&self) -> Option<&CompiledSchema> {
        self.compiled.get()?.as_ref().ok()
    }

    /// Returns the strict reading, or the only other valid one.
    pub(super) fn read(&self, given: Value) -> Result<ValidParams, ParamsMismatch> {
        if given.is_object() && self.fits(&given) {
            let Value::Object(params) = given else { return unchecked(given) };
            return Ok(ValidParams { params, repaired: Vec::new() });
        }
        let bases = self.bases(&given);
        let mut fitting: Vec<ValidParams> = Vec::new();
        // Splitting text at commas, and turning structures into text, are the last resorts.
        for last in [LastResort::None, LastResort::Commas, LastResort::Text] {
            let repair = Repair::new(&self.raw, last);
            for (params, repaired) in bases.iter().flat_map(|base| self.layouts(base, &repair)) {
                let params = Value::Object(params);
                if self.fits(&params)
                    && let Value::Object(params) = params
                    && !fitting.iter().any(|other| other.params == params)
                {
                    fitting.push(ValidParams { params, repaired });
                }
            }
            if !fitting.is_empty() {
                break;
            }
        }
        match (fitting.pop(), fitting.pop()) {
            (Some(mut only), None) => {
                let more = only.repaired.len().saturating_sub(MAX_NOTES);
                if more > 0 {
                    only.repaired.truncate(MAX_NOTES);
                    only.repaired.push(format!("and {more} more changes of this kind"));
                }
                Ok(only)
            }
            (Some(one), Some(other)) => Err(self.ambiguous(&given, &other.params, &one.params)),
            (None, _) => Err(self.misfit(&self.closest(given, bases))),
        }
    }

    /// Returns the unwrapping whose faults are worth reporting: the first with one of the tool's own fields.
    fn closest(&self, given: Value, bases: Vec<ValueWithNotes<Value>>) -> Value {
        let own: Vec<String> =
            properties(&self.raw).into_iter().flatten().map(|(name, _)| bare(name)).collect();
        let knows = |value: &Value| {
            value.as_object().is_some_and(|fields| fields.keys().any(|key| own.contains(&bare(key))))
        };
        let found = bases.into_iter().map(|(value, _)| value).find(knows);
        found.unwrap_or(given)
    }

    /// Returns the given value and its possible unwrappings.
    fn bases(&self, given: &Value) -> Vec<ValueWithNotes<Value>> {
        let mut bases = vec![(given.clone(), Vec::new())];
        let mut at = 0;
        while at < bases.len() && bases.len() < MAX_BASES {
            let (base, changes) = &bases[at];
            let inner = match base {
                Value::String(text) => from_text(text).map(|(inner, note)| (inner, with(changes, note))),
                Value::Array(items) => match &items[..] {
                    [only @ Value::Object(_)] => {
                        Some((only.clone(), with(changes, "params were a list of one object")))
                    }
                    _ => None,
                },
                Value::Object(fields) => {
                    self.unwrapped(fields).map(|(inner, note)| (inner, with(changes, &note)))
                }
                _ => None,
            };
            bases.extend(inner);
            at += 1;
        }
        bases
    }

    /// Unwraps an object that is only a wrapper or a function call.
    fn unwrapped(&self, fields: &Map<String, Value>) -> Option<(Value, String)> {
        let own = properties(&self.raw);
        let known = |key: &str| own.is_some_and(|own| own.contains_key(key));
        let mut wrapper = None;
        let mut beside = Vec::new();
        for (key, value) in fields {
            let plain = bare(key);
            let simple = !value.is_object() && !value.is_array();
            let callee = CALLEES.contains(&plain.as_str()) && value.as_str().is_some_and(|it| self.names(it));
            if !known(key) && simple && (callee || CALL_FIELDS.contains(&plain.as_str())) {
                beside.push(format!("`{}`", clip(key, 40)));
            } else if wrapper.is_none() && (is_wrapper(key) || self.is_named(key)) {
                wrapper = Some((key, value));
            } else {
                return None;
            }
        }
        let (key, value) = wrapper?;
        // One of the tool's own fields is a wrapper only if its contents are certainly params.
        if known(key) && !value.as_object().is_some_and(|inner| inner.keys().all(|key| known(key))) {
            return None;
        }
        let mut note = format!("params were wrapped in `{}`", clip(key, 40));
        if !beside.is_empty() {
            note = format!("{note}; {} beside it left out", beside.join(", "));
        }
        match value {
            Value::Null => Some((Value::Object(Map::new()), note)),
            Value::Object(_) | Value::Array(_) | Value::String(_) => Some((value.clone(), note)),
            _ => None,
        }
    }

    /// Whether a function call with this name may mean the tool.
    fn names(&self, given: &str) -> bool {
        // A JSON-RPC call, or a tool with a name unknown here.
        self.tool.is_empty() || given == "tools/call" || self.is_named(given)
    }

    /// Whether `given` is the tool's name, with or without its server.
    fn is_named(&self, given: &str) -> bool {
        let last = given.rsplit(['.', '/', ':']).next().unwrap_or(given);
        let last = last.rsplit("__").next().unwrap_or(last);
        !self.tool.is_empty() && [given, last].iter().any(|name| bare(name) == bare(&self.tool))
    }

    /// Returns the possible layouts of one unwrapping's fields, each repaired.
    fn layouts(
        &self,
        (base, changes): &ValueWithNotes<Value>,
        repair: &Repair<'_>,
    ) -> Vec<ValueWithNotes<Map<String, Value>>> {
        let Value::Object(fields) = base else { return Vec::new() };
        let mut layouts = vec![(fields.clone(), changes.clone())];
        for (moved, note) in [self.undotted(fields), self.folded(fields)].into_iter().flatten() {
            layouts.push((moved, with(changes, &note)));
        }
        let mut readings = Vec::new();
        for (fields, changes) in layouts {
            let mut notes = changes.clone();
            let repaired = repair.params(&fields, &mut notes);
            let changed = notes.len() > changes.len();
            readings.push((fields, changes));
            if changed {
                readings.push((repaired, notes));
            }
        }
        readings
    }

    /// Reads `"filter.name": 1` as `"filter": {"name": 1}`.
    fn undotted(&self, fields: &Map<String, Value>) -> Option<(Map<String, Value>, String)> {
        let own = properties(&self.raw)?;
        let mut out = Map::new();
        let mut dotted = Vec::new();
        for (key, value) in fields {
            match key.split_once('.') {
                Some((first, rest)) if !own.contains_key(key) && own.contains_key(first) => {
                    dotted.push((key, first, rest, value));
                }
                _ => {
                    out.insert(key.clone(), value.clone());
                }
            }
        }
        for (_, first, rest, value) in &dotted {
            let mut place = out.entry(*first).or_insert_with(|| Value::Object(Map::new())).as_object_mut()?;
            let mut steps = rest.split('.').peekable();
            while let Some(step) = steps.next() {
                if steps.peek().is_some() {
                    let inner = place.entry(step).or_insert_with(|| Value::Object(Map::new()));
                    place = inner.as_object_mut()?;
                } else if place.insert(step.into(), (*value).clone()).is_some() {
                    return None;
                }
            }
        }
        let keys: Vec<String> = dotted.iter().map(|(key, ..)| format!("`{}`", clip(key, 60))).collect();
        (!keys.is_empty()).then(|| (out, format!("{} taken as a path to a field inside", keys.join(", "))))
    }

    /// Moves top-level fields into the only required object that they belong to.
    fn folded(&self, fields: &Map<String, Value>) -> Option<(Map<String, Value>, String)> {
        let own = properties(&self.raw)?;
        let mut all = required(&self.raw);
        let (Some(only), None) = (all.next(), all.next()) else { return None };
        let repair = Repair::new(&self.raw, LastResort::None);
        let inner: Vec<String> =
            repair.object_fields(own.get(only)?)?.iter().map(|name| bare(name)).collect();
        let outer: Vec<String> = own.keys().map(|name| bare(name)).collect();
        let mut out = Map::new();
        let mut moved = Map::new();
        for (key, value) in fields {
            let plain = bare(key);
            match (outer.contains(&plain), inner.contains(&plain)) {
                (true, false) if plain != bare(only) => out.insert(key.clone(), value.clone()),
                (false, true) => moved.insert(key.clone(), value.clone()),
                _ => return None,
            };
        }
        if moved.is_empty() {
            return None;
        }
        out.insert(only.into(), Value::Object(moved));
        Some((out, format!("fields of `{only}` were given at the top level")))
    }
}

/// Parses JSON in a string, in a code fence, or in a string within a string. Empty text means no params.
pub fn from_text(text: &str) -> Option<(Value, &'static str)> {
    let text = text.trim();
    if text.is_empty() {
        return Some((Value::Object(Map::new()), "empty text was taken as no params"));
    }
    if let Some(fenced) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) {
        let body = fenced.strip_prefix("json").or(fenced.strip_prefix("JSON")).unwrap_or(fenced);
        return Some((parsed(body.trim())?, "params were JSON in a code fence"));
    }
    Some((parsed(text)?, "params were JSON in a string"))
}

fn parsed(text: &str) -> Option<Value> {
    if !text.starts_with(['{', '[', '"']) {
        return None;
    }
    serde_json::from_str(text).ok()
}

fn with(changes: &[String], note: &str) -> Vec<String> {
    let mut all = changes.to_vec();
    all.push(note.into());
    all
}
