//! Params that a schema does not name. They go to the server as they are, and most servers pass over them without a word.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    Schema,
    repair::{Last, Repair},
    signature::properties,
};

/// How many subschemas are looked at for names.
const MAX_VIEWS: usize = 64;

impl Schema {
    /// Whether the schema names a param so.
    pub fn names(&self, key: &str) -> bool {
        let on_top = properties(self.raw()).is_some_and(|all| all.contains_key(key));
        on_top || self.known().is_some_and(|known| known.contains(key))
    }

    /// The params that the schema does not name, where it names some and says nothing of others.
    pub fn unknown<'p>(&self, params: &'p Map<String, Value>) -> Vec<&'p str> {
        let on_top = properties(self.raw());
        if params.keys().all(|key| on_top.is_some_and(|all| all.contains_key(key))) || self.broken().is_some()
        {
            return Vec::new();
        }
        let Some(known) = self.known() else { return Vec::new() };
        params.keys().map(String::as_str).filter(|key| !known.contains(key)).collect()
    }

    /// The names of all params, unless others are welcome too, or the schema names none.
    fn known(&self) -> Option<BTreeSet<&str>> {
        let repair = Repair::new(self.raw(), Last::None);
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
