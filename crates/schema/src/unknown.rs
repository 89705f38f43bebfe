//! Params that a schema does not declare. They go to the server unchanged; most servers ignore them silently.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    CompiledSchema, Schema,
    repair::{LastResort, Repair},
    signature::properties,
};

/// The most subschemas searched for names.
const MAX_VIEWS: usize = 64;

impl Schema {
    /// Whether the schema declares a param of this name.
    pub fn names(&self, key: &str) -> bool {
        let on_top = properties(self.raw()).is_some_and(|all| all.contains_key(key));
        on_top || self.known().is_some_and(|known| known.contains(key))
    }

    /// Returns the params that the schema does not declare, unless it declares none or allows others.
    pub fn unknown<'p>(&self, params: &'p Map<String, Value>) -> Vec<&'p str> {
        let Ok(CompiledSchema { on_top, .. }) = self.compiled() else { return Vec::new() };
        if params.keys().all(|key| on_top.binary_search_by(|name| (**name).cmp(key)).is_ok()) {
            return Vec::new();
        }
        let Some(known) = self.known() else { return Vec::new() };
        params.keys().map(String::as_str).filter(|key| !known.contains(key)).collect()
    }

    /// Returns all declared names; `None` if other params are allowed or none are declared.
    fn known(&self) -> Option<BTreeSet<&str>> {
        let repair = Repair::new(self.raw(), LastResort::None);
        let mut names = BTreeSet::new();
        let mut seen = 0;
        let mut next = vec![self.raw()];
        while let Some(schema) = next.pop() {
            for view in repair.views(schema) {
                seen += 1;
                let said = |key: &str| view.get(key).filter(|others| **others != Value::Bool(false));
                let open =
                    ["additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"];
                if seen > MAX_VIEWS || open.iter().any(|key| said(key).is_some()) {
                    return None;
                }
                names.extend(properties(view).into_iter().flatten().map(|(name, _)| name.as_str()));
                for key in ["anyOf", "oneOf"] {
                    next.extend(view.get(key).and_then(Value::as_array).into_iter().flatten());
                }
                next.extend(["if", "then", "else"].iter().filter_map(|key| view.get(*key)));
                for key in ["dependentSchemas", "dependencies"] {
                    let parts = view.get(key).and_then(Value::as_object);
                    next.extend(
                        parts.into_iter().flatten().map(|(_, part)| part).filter(|part| part.is_object()),
                    );
                }
            }
        }
        Some(names).filter(|names| !names.is_empty())
    }
}
