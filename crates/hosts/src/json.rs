//! JSON with comments: read, and edited as a tree that keeps comments, commas and indentation.

use std::{collections::HashSet, path::Path};

use jsonc_parser::{
    CollectOptions, ParseOptions, ast,
    common::Ranged,
    cst::{CstInputValue, CstObject, CstRootNode},
    parse_to_ast,
};
use serde_json::{Map, Value};

use super::{
    HostFault,
    edit::ADDRESS,
    read::{KEEP_OFF, TABLES},
    shortened,
    text::position,
};

/// Plain JSON with comments and trailing commas. Other extensions are errors.
const JSONC: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Parses a text; an empty text is an empty object.
pub(super) fn value(text: &str, file: &Path) -> Result<Value, HostFault> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &JSONC).map_err(|error| {
        let (line, column) = position(text, error.range().start);
        let mut message = error.kind().to_string();
        if let Some(first) = message.get_mut(..1) {
            first.make_ascii_lowercase();
        }
        HostFault::new(format!("this is not JSON: {message}"), KEEP_OFF).within(file).at(line, column)
    })?;
    let Some(value) = parsed.value else { return Ok(Value::Object(Map::new())) };
    no_doubles(&value, text, file)?;
    let (line, column) = position(text, value.start());
    let value = Value::from(value);
    if value.is_object() {
        return Ok(value);
    }
    let remedy = "A configuration file is one object, `{ ... }`; nothing was changed.";
    Err(HostFault::new("expected an object", remedy).within(file).at(line, column))
}

/// Refuses duplicate keys: which one counts depends on the host, so none is edited. Outside the tables of
/// servers, duplicates are allowed; editors warn about them.
fn no_doubles(value: &ast::Value, text: &str, file: &Path) -> Result<(), HostFault> {
    let ast::Value::Object(root) = value else { return Ok(()) };
    let tables: Vec<_> =
        root.properties.iter().filter(|property| TABLES.contains(&property.name.as_str())).collect();
    let mut objects = vec![tables.clone()];
    let mut inside: Vec<_> = tables.iter().map(|table| &table.value).collect();
    while let Some(value) = inside.pop() {
        if let ast::Value::Object(object) = value {
            inside.extend(object.properties.iter().map(|property| &property.value));
            objects.push(object.properties.iter().collect());
        }
    }
    for properties in objects {
        let mut seen = HashSet::new();
        if let Some(again) = properties.iter().find(|property| !seen.insert(property.name.as_str())) {
            let (line, column) = position(text, again.range.start);
            let message = format!("duplicate key `{}`", shortened(again.name.as_str()));
            let remedy = "Remove one of them; nothing was changed.";
            return Err(HostFault::new(message, remedy).within(file).at(line, column));
        }
    }
    Ok(())
}

/// Adds an entry at the end of its table, or sets keys of an existing one.
pub(super) fn put(
    text: &str,
    table: &str,
    (name, entry): (&str, &Map<String, Value>),
    there: Option<&Map<String, Value>>,
) -> Option<String> {
    edited(text, table, |servers| match servers.get(name).filter(|_| there.is_some()) {
        Some(property) => {
            let object = property.object_value_or_set();
            for key in ADDRESS {
                object.get(key).into_iter().for_each(|property| property.remove());
            }
            for (key, value) in entry {
                match object.get(key) {
                    _ if there.and_then(|there| there.get(key)) == Some(value) => {}
                    Some(property) => property.set_value(input(value)),
                    None => drop(object.append(key, input(value))),
                }
            }
        }
        None => {
            servers.get(name).into_iter().for_each(|property| property.remove());
            servers.append(name, input(&Value::Object(entry.clone())));
        }
    })
}

/// Removes entries.
pub(super) fn take(text: &str, table: &str, names: &[&str]) -> Option<String> {
    edited(text, table, |servers| {
        for name in names {
            servers.get(name).into_iter().for_each(|property| property.remove());
        }
    })
}

/// Returns the byte offset of a table's value.
pub(super) fn place(text: &str, table: &str) -> Option<usize> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &JSONC).ok()?;
    Some(parsed.value?.as_object()?.get(table)?.value.start())
}

fn edited(text: &str, table: &str, edit: impl FnOnce(&CstObject)) -> Option<String> {
    let root = CstRootNode::parse(text, &JSONC).ok()?;
    edit(&root.object_value_or_create()?.object_value_or_create(table)?);
    Some(root.to_string())
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(truth) => CstInputValue::Bool(*truth),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(members) => {
            CstInputValue::Object(members.iter().map(|(key, value)| (key.clone(), input(value))).collect())
        }
    }
}
