//! Params of the right shape: a call to copy, and a correction of params that do not fit.

use nonet_base::text::clip;
use serde_json::{Map, Value, json};

use super::{
    Schema,
    alike::is_close,
    judge::{names, options, property},
    repair::{MAX_DEPTH, Repair, branches, values},
    signature::{kind, properties, required},
};

/// How deep missing values are filled in, and with how many values.
const MAX_FILLED_DEPTH: usize = 5;
const MAX_FILLED: usize = 60;
/// The most placeholder items in a list with a minimum length.
const MAX_ITEMS: u64 = 3;
/// The largest default or example to repeat, in bytes of JSON, and its largest number of values.
const MAX_SHOWN: usize = 1_000;
const MAX_SHOWN_VALUES: usize = 100;

impl Schema {
    /// Returns a params object to copy: the schema's own example, or else all required parameters, filled in
    /// as far as the schema describes them.
    pub fn example(&self) -> Map<String, Value> {
        let own = self.raw().get("examples").and_then(|all| all.get(0)).filter(|own| is_small(own));
        if let Some(own @ Value::Object(fields)) = own
            && self.accepts(own)
        {
            return fields.clone();
        }
        self.inner.example_of(Map::new()).0
    }
}

/// Counts the values that two values have in the same places.
fn common(one: &Value, other: &Value) -> usize {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.iter().filter_map(|(key, value)| Some(1 + common(value, other.get(key)?))).sum()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.iter().zip(other).map(|(one, other)| common(one, other)).sum()
        }
        _ => usize::from(one == other),
    }
}

/// Whether a schema's value is small enough to repeat.
fn is_small(value: &Value) -> bool {
    values(value) <= MAX_SHOWN_VALUES && value.to_string().len() <= MAX_SHOWN
}

impl<'a> Repair<'a> {
    /// Removes what does not fit from `value` and adds a placeholder for each missing required value. Sets
    /// `made_up` if a placeholder was added or an intended value was removed. `None`: nothing fits.
    pub(super) fn pruned(
        &self,
        schema: &'a Value,
        value: &Value,
        made_up: &mut bool,
        depth: usize,
    ) -> Option<Value> {
        let is_inside = depth > 0 || !value.is_object();
        if depth > MAX_DEPTH || is_inside && self.fits(schema, value, depth) {
            return Some(value.clone());
        }
        let views = self.views(schema);
        if let Some(near) = self.nearest_option(&views, value) {
            // Only the caller knows whether it was meant.
            *made_up = true;
            return Some(near);
        }
        let mut filled = false;
        let out = match value {
            Value::Object(fields) if self.may_be(&views, "object") => {
                Value::Object(self.pruned_object(&views, fields, &mut filled, depth))
            }
            Value::Array(items) if self.may_be(&views, "array") => {
                let mut any = items.is_empty();
                let kept = items.iter().enumerate().map(|(at, item)| {
                    let Some(schema) = views.iter().find_map(|view| self.item_schema(view, at)) else {
                        return item.clone();
                    };
                    let kept = self.pruned(schema, item, &mut filled, depth + 1);
                    any |= kept.is_some();
                    filled |= kept.is_none();
                    kept.unwrap_or_else(|| self.filler(schema).0)
                });
                let mut kept: Vec<Value> = kept.collect();
                if !any {
                    return None;
                }
                let most = views.iter().filter_map(|view| view.get("maxItems")?.as_u64()).min();
                if let Some(most) = most.and_then(|most| usize::try_from(most).ok())
                    && kept.len() > most
                {
                    kept.truncate(most);
                    filled = true;
                }
                Value::Array(kept)
            }
            _ => return None,
        };
        if filled || self.fits(schema, &out, depth) {
            *made_up |= filled;
            return Some(out);
        }
        self.pruned_branch(&views, value, made_up, depth)
    }

    /// Does the same with the alternative that keeps the most of `value`.
    fn pruned_branch(
        &self,
        views: &[&'a Value],
        value: &Value,
        made_up: &mut bool,
        depth: usize,
    ) -> Option<Value> {
        let size = values(value);
        let mut best: Option<(usize, Value, bool)> = None;
        let mut is_tied = false;
        for branch in branches(views) {
            if !self.spend(size) {
                break;
            }
            let mut guessed = false;
            let Some(kept) = self.pruned(branch, value, &mut guessed, depth + 1) else { continue };
            let same = common(value, &kept);
            match &best {
                Some((most, ..)) if *most > same => continue,
                Some((most, ..)) if *most == same => is_tied = true,
                _ => {
                    is_tied = false;
                    best = Some((same, kept, guessed));
                }
            }
        }
        let (_, kept, guessed) = best?;
        *made_up |= guessed || is_tied;
        Some(kept)
    }

    pub(super) fn pruned_object(
        &self,
        views: &[&'a Value],
        fields: &Map<String, Value>,
        made_up: &mut bool,
        depth: usize,
    ) -> Map<String, Value> {
        let named = views.iter().any(|view| properties(view).is_some());
        let mut out = Map::new();
        for (key, field) in fields {
            let kept = match views.iter().find_map(|view| property(view, key)) {
                // An undeclared key is more likely wrong than intended.
                None if named => None,
                None => Some(field.clone()),
                Some(Value::Bool(true)) if named && !views.iter().any(|view| names(view, key)) => None,
                Some(schema) => {
                    let kept = self.pruned(schema, field, made_up, depth + 1);
                    // Without this key, the call would mean something else.
                    *made_up |= kept.is_none() && views.iter().any(|view| names(view, key));
                    kept
                }
            };
            if let Some(kept) = kept {
                out.insert(key.clone(), kept);
            }
        }
        for name in views.iter().flat_map(|view| required(view)) {
            if !out.contains_key(name) {
                let part = views.iter().find_map(|view| properties(view)?.get(name));
                let (filler, exact) = part.map_or((json!("<value>"), false), |part| self.filler(part));
                *made_up |= !exact;
                out.insert(name.into(), filler);
            }
        }
        out
    }

    /// Returns the option nearest to a misspelt one, if one is nearer than all others.
    fn nearest_option(&self, views: &[&'a Value], value: &Value) -> Option<Value> {
        let given = value.as_str()?.trim().to_lowercase();
        let inner = branches(views).flat_map(|branch| self.views(branch)).collect::<Vec<_>>();
        let listed: Vec<&str> =
            options(views).chain(options(&inner)).filter_map(Value::as_str).take(MAX_SHOWN_VALUES).collect();
        let mut near: Vec<(usize, &str)> = listed
            .into_iter()
            .filter(|option| is_close(&given, &option.to_lowercase()))
            .map(|option| (strsim::damerau_levenshtein(&given, &option.to_lowercase()), option))
            .collect();
        near.sort_unstable();
        near.dedup();
        match near[..] {
            [(_, only)] => Some(json!(only)),
            [(first, nearest), (second, _), ..] if first < second => Some(json!(nearest)),
            _ => None,
        }
    }

    /// Returns a placeholder for a missing value, and whether no other value is possible.
    pub(super) fn filler(&self, schema: &'a Value) -> (Value, bool) {
        let mut left = MAX_FILLED;
        self.filled(schema, 0, &mut left)
    }

    fn filled(&self, schema: &'a Value, depth: usize, left: &mut usize) -> (Value, bool) {
        let views = self.views(schema);
        if let Some(only) = views.iter().find_map(|view| view.get("const")).filter(|only| is_small(only)) {
            return (only.clone(), true);
        }
        let said = |key: &str| views.iter().find_map(|view| view.get(key));
        let example = said("examples").and_then(|all| all.get(0)).or_else(|| said("example"));
        let shown = said("default").filter(|value| !value.is_null()).or(example);
        if let Some(value) = shown.or_else(|| options(&views).next()).filter(|value| is_small(value)) {
            return (value.clone(), false);
        }
        let placeholder = || {
            let kind = views.iter().copied().map(kind).find(|kind| kind != "any");
            (json!(format!("<{}>", clip(kind.as_deref().unwrap_or("any"), 120))), false)
        };
        *left = left.saturating_sub(1);
        if *left == 0 || depth >= MAX_FILLED_DEPTH {
            return placeholder();
        }
        let needed: Vec<&str> = views.iter().flat_map(|view| required(view)).collect();
        if self.may_be(&views, "object") && !needed.is_empty() {
            let mut exact = true;
            let mut out = Map::new();
            for name in needed {
                let part = views.iter().find_map(|view| properties(view)?.get(name));
                let (value, only) =
                    part.map_or((json!("<value>"), false), |part| self.filled(part, depth + 1, left));
                exact &= only;
                out.insert(name.into(), value);
            }
            return (Value::Object(out), exact);
        }
        if self.allows(&views, "array") {
            let least = said("minItems").and_then(Value::as_u64).unwrap_or(1).clamp(1, MAX_ITEMS);
            let items = (0..).take(usize::try_from(least).unwrap_or(1));
            let items: Option<Vec<Value>> = items
                .map(|at| {
                    let item = views.iter().find_map(|view| self.item_schema(view, at))?;
                    Some(self.filled(item, depth + 1, left).0)
                })
                .collect();
            return items.map_or_else(placeholder, |items| (Value::Array(items), false));
        }
        // Of several shapes, take the first with members.
        let inside = branches(&views)
            .map(|branch| self.filled(branch, depth + 1, left).0)
            .find(|filled| filled.is_object() || filled.is_array());
        inside.map_or_else(placeholder, |inside| (inside, false))
    }
}
