//! Reads the responses of an operation: the types to accept, and the output schema.

use http::HeaderValue;
use serde_json::{Map, Value, json};

use super::{MAX_DEPTH, MAX_PARTS, OperationDefinition, Reader};
use crate::{plan::Media, schema::SchemaSide};

/// The successful responses of an operation.
pub(super) struct Responses<'a> {
    pub accept: HeaderValue,
    pub schema: Option<&'a Value>,
}

impl<'a> Reader<'a, '_> {
    /// Reads the successful responses.
    pub(super) fn responses(&self, found: &OperationDefinition<'a>) -> Responses<'a> {
        let document = self.schemas.document;
        let mut accepted: Vec<&str> = Vec::new();
        let mut schemas: Vec<Option<&'a Value>> = Vec::new();
        let all = found.operation.get("responses").and_then(Value::as_object).into_iter().flatten();
        for (_, response) in all.filter(|(code, _)| code.starts_with('2')) {
            let content =
                document.resolved(response).ok().and_then(|response| response.get("content")?.as_object());
            let types = content.into_iter().flatten();
            let json = types.clone().find(|(name, _)| matches!(Media::new(name), (0 | 1, _)));
            schemas.push(json.and_then(|(_, content)| content.get("schema")));
            for (name, _) in types {
                let name = name.trim();
                if HeaderValue::from_str(name).is_ok()
                    && name.is_ascii()
                    && name.contains('/')
                    && !accepted.contains(&name)
                {
                    accepted.push(name);
                }
            }
        }
        // The output schema has to cover every successful response.
        let schema = match schemas[..] {
            [Some(first), ref others @ ..] if others.iter().all(|other| *other == Some(first)) => Some(first),
            _ => None,
        };
        Responses { accept: accept(&accepted), schema: schema.filter(|raw| self.is_object(raw, 0, &mut 0)) }
    }

    /// Returns whether only objects satisfy a schema, as far as `parts` of it show.
    fn is_object(&self, raw: &Value, depth: usize, parts: &mut usize) -> bool {
        *parts += 1;
        let Some(map) = raw.as_object().filter(|_| depth < MAX_DEPTH && *parts <= MAX_PARTS) else {
            return false;
        };
        if map.get("nullable") == Some(&Value::Bool(true)) {
            return false;
        }
        if let Some(kind) = map.get("type") {
            return kind == "object"
                || kind.as_array().is_some_and(|all| all.len() == 1 && all[0] == "object");
        }
        let list = |key: &str| map.get(key).and_then(Value::as_array).filter(|all| !all.is_empty());
        let target =
            map.get("$ref").and_then(Value::as_str).and_then(|to| self.schemas.document.target(to).ok());
        target.is_some_and(|target| self.is_object(target, depth + 1, parts))
            || map.contains_key("properties")
            || list("allOf").is_some_and(|all| all.iter().any(|part| self.is_object(part, depth + 1, parts)))
            || ["anyOf", "oneOf"].iter().any(|key| {
                list(key).is_some_and(|all| all.iter().all(|part| self.is_object(part, depth + 1, parts)))
            })
    }

    /// Returns the output schema, if it can be made small enough.
    pub(super) fn output(&mut self, raw: &'a Value) -> Option<Value> {
        let limit = self.max_output;
        let part =
            self.schemas.converted(SchemaSide::Output, limit, |converter| converter.schema(raw, 0, true))?;
        let schema = self.schemas.whole(&part, SchemaSide::Output, limit);
        if schema.get("type").is_some_and(|kind| kind == "object") {
            return Some(Value::Object(schema));
        }
        let mut object = Map::from_iter([("type".to_string(), json!("object"))]);
        object.extend(schema.into_iter().filter(|(key, _)| key != "type"));
        Some(Value::Object(object))
    }
}

/// Returns the `Accept` header: JSON first, then the document's other types, then anything.
fn accept(types: &[&str]) -> HeaderValue {
    let is_json = |name: &&&str| matches!(Media::new(name), (0 | 1, _)) && !name.contains('*');
    let json = types.iter().find(is_json).copied().unwrap_or("application/json");
    let mut accept = json.to_string();
    let others = types.iter().filter(|name| **name != json && **name != "*/*");
    for other in others.take(5) {
        accept.push_str(&format!(", {other};q=0.8"));
    }
    accept.push_str(", */*;q=0.5");
    HeaderValue::from_str(&accept).unwrap_or(HeaderValue::from_static("application/json, */*;q=0.5"))
}
