//! An OpenAPI document as one JSON tree, and the references within it.

use std::{cell::Cell, fmt};

use percent_encoding::percent_decode_str;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::MAX_DOCUMENT;

/// The maximum number of values in a document. Large real documents have a tenth of it.
const MAX_NODES: usize = 4_000_000;
/// The maximum nesting of a YAML document; for JSON it is 128.
const MAX_DEPTH: usize = 128;
/// The maximum number of references in a chain.
const MAX_HOPS: usize = 16;

/// A document of OpenAPI 3.
#[derive(Debug)]
pub(super) struct ApiDocument {
    root: Value,
    /// Whether schemas follow OpenAPI 3.0, where siblings of a `$ref` are ignored.
    pub is_3_0: bool,
}

impl ApiDocument {
    /// Reads JSON or YAML.
    ///
    /// # Errors
    ///
    /// Returns why the document cannot be used, and what to do.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_DOCUMENT {
            return Err(format!("the document has {} bytes; at most {MAX_DOCUMENT} are read", bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "the document is not UTF-8 text".to_string())?;
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let root = match text.as_bytes().first() {
            None => return Err("the document is empty".into()),
            Some(b'{') => json(text)?,
            Some(b'<') => {
                return Err(
                    "the document is a web page or XML: name the address of the OpenAPI document itself, \
                            which is JSON or YAML"
                        .into(),
                );
            }
            Some(_) => yaml(text)?,
        };
        let is_3_0 = version(&root)?.starts_with("3.0");
        Ok(Self { root, is_3_0 })
    }

    /// Returns a member of the document's root, if it exists.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.root.get(key)
    }

    /// Follows the references of anything but a schema.
    ///
    /// # Errors
    ///
    /// Returns the reference that leads nowhere.
    pub(crate) fn resolved<'a>(&'a self, mut value: &'a Value) -> Result<&'a Value, String> {
        for _ in 0..MAX_HOPS {
            let Some(reference) = value.get("$ref").and_then(Value::as_str) else { return Ok(value) };
            value = self.target(reference)?;
        }
        Err("its references form a cycle".into())
    }

    /// Returns the target of a reference.
    ///
    /// # Errors
    ///
    /// Returns why there is no target.
    pub(crate) fn target(&self, reference: &str) -> Result<&Value, String> {
        let shown = || nonet_base::text::clip(reference, 120);
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err(format!("`{}` is in another file, which is not read", shown()));
        };
        let plain = percent_decode_str(pointer).decode_utf8_lossy();
        self.root
            .pointer(&plain)
            .or_else(|| self.root.pointer(pointer))
            .ok_or_else(|| format!("the document has no `{}`", shown()))
    }
}

/// Returns the OpenAPI version, if it is supported.
fn version(root: &Value) -> Result<String, String> {
    let text = |key: &str| match root.get(key) {
        Some(Value::String(text)) => Some(text.trim().to_string()),
        // YAML without quotes.
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    if let Some(old) = text("swagger") {
        return Err(format!(
            "the document is OpenAPI {old} (Swagger), and only 3.0 and later are read: convert it, for example with \
             `npx swagger2openapi FILE -o openapi.json`, or ask the service for its OpenAPI 3 document"
        ));
    }
    match text("openapi") {
        Some(version) if version == "3" || version.starts_with("3.") => Ok(version),
        Some(version) => Err(format!(
            "the document is OpenAPI {}, and only 3.x is read",
            nonet_base::text::clip(&version, 20)
        )),
        None => {
            Err("the document has no `openapi: 3...` at its beginning, so it is not an OpenAPI document"
                .into())
        }
    }
}

fn json(text: &str) -> Result<Value, String> {
    let nodes = Cell::new(0);
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Tree { nodes: &nodes }.deserialize(&mut reader).and_then(|root| reader.end().map(|()| root));
    read.map_err(|error| format!("the document is not valid JSON: {error}"))
}

fn yaml(text: &str) -> Result<Value, String> {
    let nodes = Cell::new(0);
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_depth: MAX_DEPTH,
            max_aliases: 10_000,
            max_anchors: 10_000,
            max_merge_keys: 10_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 1_000_000,
            max_replay_stack_depth: 16,
        },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
        Tree { nodes: &nodes }.deserialize(reader)
    })
    .map_err(|error| {
        format!(
            "the document is neither JSON nor valid YAML: {}",
            nonet_base::text::clip(&error.to_string(), 300)
        )
    })
}

/// Builds a tree and counts its values, because a short text can make a large tree.
#[derive(Clone, Copy)]
struct Tree<'n> {
    nodes: &'n Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.nodes.set(self.nodes.get() + 1);
        if self.nodes.get() > MAX_NODES {
            return Err(D::Error::custom(format!("it has more than {MAX_NODES} values")));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Number::from_i128(value).map_or_else(|| float(value as f64), Value::Number))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Number::from_u128(value).map_or_else(|| float(value as f64), Value::Number))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            all.push(item);
        }
        all.shrink_to_fit();
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value = members.next_value_seed(self)?;
            all.insert(key, value);
        }
        Ok(Value::Object(all))
    }
}

/// Converts a float. JSON has no infinity.
fn float(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}
