//! Params of the right shape, for a caller whose own do not fit.

use serde_json::{Map, Value, json};

use super::{
    clip,
    judge::{names, options, property},
    repair::{MAX_DEPTH, Repair},
    signature::{kind, properties, required},
};

impl<'a> Repair<'a> {
    /// `value` without what does not fit, and with a placeholder for each required thing that is
    /// missing; `made_up` is set if there are any, or if something that was wanted is left out. `None`: nothing of it fits.
    pub(super) fn pruned(
        &self,
        schema: &'a Value,
        value: &Value,
        made_up: &mut bool,
        depth: usize,
    ) -> Option<Value> {
        if depth > MAX_DEPTH || self.fits(schema, value, depth) && !value.is_object() {
            return Some(value.clone());
        }
        let views = self.views(schema);
        let mut filled = false;
        let out = match value {
            Value::Object(fields) if self.may_be(&views, "object") => {
                Value::Object(self.pruned_object(&views, fields, &mut filled, depth))
            }
            Value::Array(items) if self.may_be(&views, "array") => {
                let kept = items.iter().enumerate().map(|(at, item)| {
                    match views.iter().find_map(|view| self.item_schema(view, at)) {
                        Some(schema) => self.pruned(schema, item, &mut filled, depth + 1),
                        None => Some(item.clone()),
                    }
                });
                Value::Array(kept.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        *made_up |= filled;
        (filled || self.fits(schema, &out, depth)).then_some(out)
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
                // A key that the schema does not name is more likely wrong than wanted.
                None if named => None,
                None => Some(field.clone()),
                Some(Value::Bool(true)) if named && !views.iter().any(|view| names(view, key)) => None,
                Some(schema) => {
                    let kept = self.pruned(schema, field, made_up, depth + 1);
                    // Without it the call would mean something else.
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

    /// What stands for a missing value, and whether it can be nothing else.
    pub(super) fn filler(&self, schema: &'a Value) -> (Value, bool) {
        let views = self.views(schema);
        if let Some(only) = views.iter().find_map(|view| view.get("const")) {
            return (only.clone(), true);
        }
        let default = views.iter().find_map(|view| view.get("default"));
        if let Some(value) = default.or_else(|| options(&views).next()) {
            return (value.clone(), false);
        }
        let said = views.iter().map(|view| kind(view)).find(|kind| kind != "any");
        (json!(format!("<{}>", clip(said.as_deref().unwrap_or("any"), 120))), false)
    }
}
