//! The fields of a form, read against its schema.

use nonet_base::text::clip;
use nonet_schema::{Schema, bare};
use serde_json::{Map, Value, json};

use super::{
    choices::choose,
    decision::{Decision, decision},
    opened_beside, text_of,
};

/// The maximum length of the faults of a form, in characters.
const MAX_FAULTS: usize = 600;

/// Reads the fields of a form against its schema, or returns their faults.
pub fn fields(answer: &Value, form: &Value) -> Result<Map<String, Value>, String> {
    let own = form.get("properties").and_then(Value::as_object);
    let own = || own.into_iter().flatten();
    let known = |name: &str| own().any(|(own, _)| own == name);
    let opened = opened_beside(answer, &known);
    let lines = opened.as_str().and_then(|text| lines(text, own().map(|(name, _)| name)));
    let mut given = match lines.map_or(opened, Value::Object) {
        Value::Object(fields) => {
            let names: Vec<String> = own().map(|(name, _)| bare(name)).collect();
            if !names.is_empty() && !fields.is_empty() && !fields.keys().any(|key| names.contains(&bare(key)))
            {
                return Err(format!(
                    "it has none of the fields {}",
                    own().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
                ));
            }
            fields
        }
        // A single value, for the only field or the only required field.
        value => {
            let required = form.get("required").and_then(Value::as_array);
            let must: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
            let names: Vec<&str> = own().map(|(name, _)| name.as_str()).collect();
            match (&names[..], &must[..]) {
                ([only], _) | (_, [only]) => Map::from_iter([((*only).to_string(), value)]),
                _ => return Err(format!("it has to be an object with {}", names.join(", "))),
            }
        }
    };
    for (name, schema) in own() {
        if let Some(value) = given.get_mut(name)
            && let Some(meant) = field(value, schema)
        {
            *value = meant;
        }
    }
    match Schema::new(form.clone()).read(Value::Object(given)) {
        Ok(reading) => Ok(reading.params),
        Err(misfit) => {
            Err(clip(&misfit.faults.join("; ").replace("params/", "").replace("params: ", ""), MAX_FAULTS))
        }
    }
}
/// Reads fields as people write them: a line of `key: value` for each. Returns `None` if a line is anything
/// else.
fn lines<'a>(text: &str, own: impl Iterator<Item = &'a String>) -> Option<Map<String, Value>> {
    let own: Vec<&String> = own.collect();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let fields = lines.map(|line| {
        let (key, value) = line.split_once(':')?;
        let name = own.iter().find(|name| bare(name) == bare(key.trim()))?;
        Some(((*name).clone(), json!(value.trim())))
    });
    fields.collect::<Option<Map<_, _>>>().filter(|fields| !fields.is_empty())
}
/// Reads a field's value as people say it: a yes for true, a number for a choice.
fn field(value: &Value, schema: &Value) -> Option<Value> {
    let kind = schema.get("type").and_then(Value::as_str);
    if kind == Some("boolean") && value.is_string() {
        return match decision(value).decision {
            Decision::Yes => Some(json!(true)),
            Decision::No => Some(json!(false)),
            _ => None,
        };
    }
    let many = kind == Some("array");
    let (values, titles) = options(if many { schema.get("items")? } else { schema })?;
    let shown = |all: &[Value]| all.iter().map(|one| text_of(one).unwrap_or_default()).collect::<Vec<_>>();
    let taken = choose(value, &shown(&values), many).or_else(|| choose(value, &shown(&titles), many))?;
    let mut taken = taken.into_iter().filter_map(|at| values.get(at).cloned());
    if many { Some(taken.collect()) } else { taken.next() }
}
/// Returns the values that a field accepts, and their titles.
fn options(schema: &Value) -> Option<(Vec<Value>, Vec<Value>)> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let titles = schema.get("enumNames").and_then(Value::as_array).unwrap_or(values);
        return Some((values.clone(), titles.clone()));
    }
    let branches = ["oneOf", "anyOf"].iter().find_map(|key| schema.get(*key)?.as_array())?;
    let pairs = branches.iter().map(|branch| {
        let value = branch.get("const")?;
        Some((value.clone(), branch.get("title").unwrap_or(value).clone()))
    });
    pairs.collect::<Option<Vec<_>>>().map(|pairs| pairs.into_iter().unzip())
}
