//! Why params do not fit, worded so that a model can correct them.

use jsonschema::{ValidationError, error::ValidationErrorKind as Kind};
use nonet_base::text::clip;
use serde_json::{Map, Value, json};

use super::{
    Inner, ParamsMismatch,
    limits::CheckCost,
    repair::{LastResort, Repair, values},
    signature::{kind, properties, required},
};

/// The most faults reported for one params object.
const MAX_FAULTS: usize = 8;
/// The longest message of a fault, in characters.
pub(super) const MAX_MESSAGE: usize = 240;
/// How much of a value is quoted, in characters.
const MAX_VALUE: usize = 80;
/// The work allowed to find every fault: subschemas times values in the params, and times bytes of the
/// params. For each fault of each alternative, the validator keeps a copy of the faulty part and about a
/// kilobyte.
const MAX_LOOKS: u64 = 100_000;
const MAX_COPIES: u64 = 64_000_000;

impl Inner {
    /// Explains what is wrong with `given`, which has no valid reading.
    pub(super) fn misfit(&self, given: &Value) -> ParamsMismatch {
        let Value::Object(fields) = given else {
            let found = clip(&given.to_string(), MAX_VALUE);
            let (example, _) = self.example_of(Map::new());
            let faults = vec![format!("params: {found} is not an object")];
            return ParamsMismatch { faults, example, example_fits: false };
        };
        // Report only the faults that repairs cannot fix.
        let repaired = Repair::new(&self.raw, LastResort::None).params(fields, &mut Vec::new());
        let suggested = Repair::suggesting(&self.raw).params(fields, &mut Vec::new());
        let (example, example_fits) = self.example_of(suggested);
        ParamsMismatch { faults: self.faults(&Value::Object(repaired)), example, example_fits }
    }

    /// Explains why params with two valid readings are refused.
    pub(super) fn ambiguous(
        &self,
        given: &Value,
        one: &Map<String, Value>,
        other: &Map<String, Value>,
    ) -> ParamsMismatch {
        let shown = |params: &Map<String, Value>| clip(&json!(params).to_string(), MAX_VALUE);
        let fault = format!("params: ambiguous: they could mean {} or {}", shown(one), shown(other));
        let mut misfit = self.misfit(given);
        misfit.faults.insert(0, fault);
        misfit.faults.truncate(MAX_FAULTS);
        // Offering either reading would be a guess.
        misfit.example_fits = false;
        misfit
    }

    /// Corrects `fields` with placeholders. Returns the result and whether it fits as it is.
    pub(super) fn example_of(&self, fields: Map<String, Value>) -> (Map<String, Value>, bool) {
        let repair = Repair::new(&self.raw, LastResort::None);
        let own = properties(&self.raw);
        let part = |name: &str| own.and_then(|own| own.get(name));
        let filler = |name: &str| part(name).map_or((json!("<value>"), false), |part| repair.filler(part)).0;
        let mut made_up = false;
        let pruned = repair.pruned(&self.raw, &Value::Object(fields), &mut made_up, 0);
        let mut example = match pruned {
            Some(Value::Object(example)) => example,
            _ => {
                made_up = true;
                required(&self.raw).map(|name| (name.to_string(), filler(name))).collect()
            }
        };
        // The validator also checks patterns and formats, unlike the repairs.
        let whole = Value::Object(example.clone());
        if let Some(validator) = self.cheap(&whole) {
            for error in validator.iter_errors(&whole) {
                let path = error.instance_path().to_string();
                let placeholder = has_placeholder(error.instance());
                if !placeholder && replace_inside(&mut example, &path, || self.part_of(&error, &repair)) {
                    made_up = true;
                    continue;
                }
                let Some(name) =
                    path.split('/').nth(1).map(|name| name.replace("~1", "/").replace("~0", "~"))
                else {
                    continue;
                };
                if placeholder {
                    continue;
                }
                if required(&self.raw).any(|needed| needed == name) {
                    example.insert(name.clone(), filler(&name));
                    made_up = true;
                } else {
                    made_up |= part(&name).is_some();
                    example.shift_remove(&name);
                }
            }
        }
        let fits = !made_up && self.fits(&Value::Object(example.clone()));
        (example, fits)
    }

    /// Returns a placeholder for the value that an error is about.
    fn part_of(&self, error: &ValidationError<'_>, repair: &Repair<'_>) -> Value {
        let place = error.schema_path().as_str().rsplit_once('/').map_or("", |(place, _)| place);
        self.raw.pointer(place).map_or_else(|| json!("<value>"), |part| repair.filler(part).0)
    }

    /// Returns the validator, if listing every fault of `value` is cheap.
    fn cheap(&self, value: &Value) -> Option<&jsonschema::Validator> {
        let compiled = self.ready()?;
        let CheckCost::Simple(subschemas) = compiled.cost else { return None };
        let times = |size: usize| subschemas.saturating_mul(u64::try_from(size).unwrap_or(u64::MAX));
        let little = times(values(value)) <= MAX_LOOKS && times(value.to_string().len()) <= MAX_COPIES;
        little.then_some(&compiled.validator)
    }

    fn faults(&self, value: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        match self.cheap(value) {
            Some(validator) => {
                for error in validator.iter_errors(value) {
                    self.report(&error, &mut faults, 0);
                }
            }
            None => self.report_top_level(value, &mut faults),
        }
        let mut messages: Vec<String> = Vec::new();
        for fault in faults {
            if messages.len() < MAX_FAULTS && !messages.contains(&fault) {
                messages.push(fault);
            }
        }
        if messages.is_empty() {
            messages.push("params: they do not fit the schema".into());
        }
        messages
    }

    /// Reports one fault. If all alternatives fail, reports the faults of the intended one.
    fn report(&self, error: &ValidationError<'_>, out: &mut Vec<String>, depth: usize) {
        if out.len() >= 2 * MAX_FAULTS {
            return;
        }
        let path = error.instance_path().to_string();
        let value = clip(&error.instance().to_string(), MAX_VALUE);
        let message = match error.kind() {
            Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
                let mut meant = context.iter().filter(|branch| meant(branch, &path));
                if let (Some(only), None, true) = (meant.next(), meant.next(), depth < 8) {
                    for inner in only {
                        self.report(inner, out, depth + 1);
                    }
                    return;
                }
                let branches = self.raw.pointer(error.schema_path().as_str()).and_then(Value::as_array);
                let kinds: Vec<String> = branches.into_iter().flatten().map(kind).collect();
                match &kinds[..] {
                    [] => error.masked_with(value).to_string(),
                    _ => format!("{value} does not fit any of {}", clip(&kinds.join("|"), MAX_VALUE)),
                }
            }
            _ => error.masked_with(value).to_string(),
        };
        out.push(clip(&format!("params{}: {message}", clip(&path, MAX_VALUE)), MAX_MESSAGE));
    }

    /// Reports faults of top-level fields without the validator.
    fn report_top_level(&self, value: &Value, out: &mut Vec<String>) {
        let Some(fields) = value.as_object() else { return };
        let repair = Repair::new(&self.raw, LastResort::None);
        for name in required(&self.raw).filter(|name| !fields.contains_key(*name)) {
            out.push(clip(&format!("params: \"{name}\" is a required property"), MAX_MESSAGE));
        }
        let own = properties(&self.raw);
        for (key, field) in fields {
            match own.and_then(|own| own.get(key)) {
                Some(schema) if !repair.fits(schema, field, 0) => {
                    let found = clip(&field.to_string(), MAX_VALUE);
                    let text =
                        format!("params/{}: {found} is not of type {}", clip(key, MAX_VALUE), kind(schema));
                    out.push(clip(&text, MAX_MESSAGE));
                }
                None if self.raw.get("additionalProperties") == Some(&Value::Bool(false)) => {
                    out.push(format!("params: the tool does not take `{}`", clip(key, MAX_VALUE)));
                }
                _ => {}
            }
        }
    }
}

/// Returns a fault of any value: its place, and what is wrong there.
pub(super) fn told(error: &ValidationError<'_>) -> String {
    let path = error.instance_path().to_string();
    let value = clip(&error.instance().to_string(), MAX_VALUE);
    clip(&format!("{}: {}", clip(&path, MAX_VALUE), error.masked_with(value)), MAX_MESSAGE)
}

/// Whether a value is or has a placeholder.
fn has_placeholder(value: &Value) -> bool {
    match value {
        Value::String(text) => text.starts_with('<'),
        Value::Array(items) => items.iter().any(has_placeholder),
        Value::Object(fields) => fields.values().any(has_placeholder),
        _ => false,
    }
}

/// Replaces a plain value inside of a field, so that the rest of the field stays. Returns whether there is
/// such a value.
fn replace_inside(example: &mut Map<String, Value>, path: &str, part: impl FnOnce() -> Value) -> bool {
    let Some((name, inside)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return false;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    let place = example.get_mut(&name).and_then(|field| field.pointer_mut(&format!("/{inside}")));
    match place.filter(|place| !place.is_object() && !place.is_array()) {
        Some(place) => {
            *place = part();
            true
        }
        None => false,
    }
}

/// Whether an alternative is the intended one: the value has its type and its constants.
fn meant(faults: &[ValidationError<'_>], path: &str) -> bool {
    !faults.iter().any(|fault| {
        let at = fault.instance_path().to_string();
        let below = at.strip_prefix(path).unwrap_or(&at);
        match fault.kind() {
            Kind::Type { .. } => below.is_empty(),
            Kind::Constant { .. } | Kind::Enum { .. } => below.matches('/').count() <= 1,
            _ => false,
        }
    })
}
