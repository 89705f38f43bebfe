//! What a schema says about one place in the params, without a value.

use serde_json::Value;

use super::Schema;

/// The most references and alternatives followed for one place, each counted once.
const MAX_FOLLOWED: usize = 200;

impl Schema {
    /// Whether the schema accepts a string at `path` and nothing else, except null. An undescribed place
    /// accepts anything.
    pub fn takes_only_text(&self, path: &[String]) -> bool {
        takes_only_text(self.raw(), path)
    }
}

/// Returns the same as the method, for a place in the schema `root`.
pub(super) fn takes_only_text(root: &Value, path: &[String]) -> bool {
    let mut left = MAX_FOLLOWED;
    let mut here = alternatives(root, root, &mut left);
    for step in path {
        let below = here.iter().filter_map(|schema| below(schema, step)).collect::<Vec<_>>();
        here = below.into_iter().flat_map(|schema| alternatives(root, schema, &mut left)).collect();
    }
    let types = here.iter().filter(|schema| !is_type(schema, "null"));
    left > 0 && types.clone().next().is_some() && types.clone().all(|schema| is_text(schema))
}

/// Resolves a local reference.
pub(super) fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    if pointer.is_empty() { Some(root) } else { root.pointer(pointer) }
}

/// Resolves references and returns the alternatives of a schema.
fn alternatives<'a>(root: &'a Value, schema: &'a Value, left: &mut usize) -> Vec<&'a Value> {
    *left = left.saturating_sub(1);
    if *left == 0 {
        return vec![schema];
    }
    if let Some(target) =
        schema.get("$ref").and_then(Value::as_str).and_then(|reference| target(root, reference))
    {
        return alternatives(root, target, left);
    }
    let several = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key)?.as_array());
    match several {
        Some(several) => several.iter().flat_map(|one| alternatives(root, one, left)).collect(),
        None => match schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
            // Pydantic writes a described reference this way.
            Some([only]) if schema.get("properties").is_none() => alternatives(root, only, left),
            _ => vec![schema],
        },
    }
}

fn below<'a>(schema: &'a Value, step: &str) -> Option<&'a Value> {
    if let Some(own) = schema.get("properties").and_then(|own| own.get(step)) {
        return Some(own);
    }
    let by_index = || {
        let at = step.parse::<usize>().ok()?;
        let tuple =
            schema.get("prefixItems").or_else(|| schema.get("items").filter(|items| items.is_array()));
        tuple.and_then(|tuple| tuple.get(at)).or_else(|| schema.get("items"))
    };
    by_index().or_else(|| schema.get("additionalProperties")).filter(|found| found.is_object())
}

fn is_type(schema: &Value, name: &str) -> bool {
    schema.get("type").and_then(Value::as_str) == Some(name)
}

fn is_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => {
            names.iter().any(|name| name == "string") && names.iter().all(|n| n == "string" || n == "null")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_for_text_are_known() {
        let schema = Schema::new(json!({
            "$defs": { "Text": { "type": "string" }, "Loop": { "$ref": "#/$defs/Loop" } },
            "properties": {
                "content": { "type": "string" },
                "maybe": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "both": { "anyOf": [{ "type": "string" }, { "type": "object" }] },
                "types": { "type": ["string", "null"] },
                "reference": { "allOf": [{ "$ref": "#/$defs/Text" }] },
                "any": {},
                "list": { "type": "array", "items": { "properties": { "text": { "$ref": "#/$defs/Text" } } } },
                "map": { "type": "object", "additionalProperties": { "type": "string" } },
                "loop": { "$ref": "#/$defs/Loop" },
            },
        }));
        let check = |path: &str, expected| {
            let steps: Vec<String> = path.split('.').map(String::from).collect();
            assert_eq!(schema.takes_only_text(&steps), expected, "{path}");
        };
        for path in ["content", "maybe", "types", "reference", "list.0.text", "map.key"] {
            check(path, true);
        }
        for path in
            ["both", "any", "list", "list.0", "map", "unknown", "content.deeper", "loop", "loop.deeper"]
        {
            check(path, false);
        }
    }
}
