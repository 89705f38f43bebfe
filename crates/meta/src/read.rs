//! A meta-tool, and how one call of it is read.

use std::sync::Arc;

use futures::future::BoxFuture;
use nonet_api::notice::Notice;
use nonet_schema::{Schema, ValidParams};
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
    name::meta_tool,
    results::CallResult,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::arguments::{self, KnownTools};
use nonet_core::{Gate, Gateway, Interrupt, MAX_ACTIONS, too_many};
use nonet_state::session::Caller;

/// How many nested `execute_tool` an action may have.
const MAX_NESTED: usize = 4;

/// Answers a call of a meta-tool with a `CallToolResult`.
pub(super) type Handler =
    for<'a, 'b> fn(&'a mut MetaCall<'b>) -> BoxFuture<'a, Result<CallResult, Interrupt>>;

/// A hint of a definition.
#[derive(Clone, Copy)]
pub(super) enum Hint {
    ReadOnly,
    /// Neither destructive by itself nor open to the world.
    Harmless,
    AlwaysLoad,
    MayBeTask,
}

/// A meta-tool as declared.
pub(super) struct Definition {
    pub name: &'static str,
    pub description: &'static str,
    pub properties: Value,
    pub required: &'static [&'static str],
    pub hints: &'static [Hint],
    pub aliases: Aliases,
    pub run: Handler,
}

pub(super) struct MetaTool {
    pub name: &'static str,
    /// As `tools/list` shows it.
    pub definition: Value,
    pub aliases: Aliases,
    pub run: Handler,
    pub schema: Schema,
    /// The names of its arguments.
    own: Vec<String>,
}

impl From<Definition> for MetaTool {
    fn from(from: Definition) -> Self {
        let Definition { name, description, properties, required, hints, aliases, run } = from;
        let schema = object(properties, required);
        let mut definition =
            json!({ "name": name, "description": description, "inputSchema": as_shown(&schema) });
        for hint in hints {
            match hint {
                Hint::ReadOnly => definition["annotations"] = json!({ "readOnlyHint": true }),
                Hint::Harmless => {
                    definition["annotations"] = json!({ "destructiveHint": false, "openWorldHint": false });
                }
                Hint::AlwaysLoad => definition["_meta"] = json!({ "anthropic/alwaysLoad": true }),
                Hint::MayBeTask => definition["execution"] = json!({ "taskSupport": "optional" }),
            }
        }
        let schema = Schema::of_tool(name, schema);
        let own = schema.parameters().iter().map(|parameter| parameter.name.to_string()).collect();
        Self { name, definition, aliases, run, schema, own }
    }
}

/// The key that holds the type of a property in the definition only.
const SHOWN_TYPE: &str = "shownType";

/// Builds a property that accepts any value. Clients see a single type, because some reject a property
/// without one.
pub(super) fn any(shown: &str, about: &str) -> Value {
    json!({ SHOWN_TYPE: shown, "description": about })
}

/// Returns a schema as clients see it: every property has a type, and a minimum of 1, which goes without
/// saying, costs no bytes.
fn as_shown(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let shown = |(key, value): (&String, &Value)| match (key.as_str(), value) {
        (SHOWN_TYPE, kind) => Some(("type".into(), kind.clone())),
        ("minimum", least) if *least == 1 => None,
        ("items", items) => Some((key.clone(), as_shown(items))),
        ("properties", Value::Object(all)) => {
            let all: Map<String, Value> = all.iter().map(|(name, of)| (name.clone(), as_shown(of))).collect();
            Some((key.clone(), all.into()))
        }
        _ => Some((key.clone(), value.clone())),
    };
    fields.iter().filter_map(shown).collect()
}

/// Builds the schema of an object.
pub(super) fn object(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// One call of a meta-tool.
pub(super) struct MetaCall<'a> {
    pub tool: &'static MetaTool,
    pub gateway: &'a Arc<Gateway>,
    pub caller: &'a Caller,
    pub arguments: Map<String, Value>,
    /// Repairs to the arguments, and arguments that were not understood.
    pub changes: Vec<String>,
}

impl MetaCall<'_> {
    pub(super) fn gate(&self) -> Gate {
        Gate::of(&self.gateway.publisher, &self.caller.session)
    }

    /// Returns the notice about changed arguments, if there are any.
    pub(super) fn notices(&mut self) -> Vec<Value> {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return Vec::new();
        }
        vec![Notice::ArgumentsRepaired { tool: self.tool.name.into(), changes }.into()]
    }

    /// Takes the arguments if they are a text `name` and an object `params` and nothing else: in most calls
    /// of `execute_tool`, which its schema allows as they are.
    pub(super) fn name_and_params(&mut self) -> Option<(String, Value)> {
        let (mut name, mut params) = (None, None);
        for (key, value) in &mut self.arguments {
            match (key.as_str(), value) {
                ("name", Value::String(given)) => name = Some(given),
                ("params", given @ Value::Object(_)) => params = Some(given),
                _ => return None,
            }
        }
        let (name, params) = name.zip(params)?;
        Some((std::mem::take(name), params.take()))
    }

    /// Renames the arguments to the meta-tool's own names.
    pub(super) fn rename(&mut self) {
        let own: Vec<&str> = self.tool.own.iter().map(String::as_str).collect();
        let given = std::mem::take(&mut self.arguments);
        let (arguments, changes) = arguments::named(self.tool.name, &own, self.tool.aliases, given);
        self.arguments = arguments;
        self.changes.extend(changes);
    }

    /// Takes arguments that mean nothing here as members of `input`, if `name` is given and `input` is not:
    /// what is called by that name may take them.
    pub(super) fn take_beside(&mut self, name: &str, input: &str) {
        let own: Vec<&str> = self.tool.own.iter().map(String::as_str).collect();
        let change = arguments::take_beside(&own, self.tool.aliases, &mut self.arguments, (name, input));
        self.changes.extend(change);
    }

    /// Reads the arguments, including aliases.
    pub(super) fn read<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        self.rename();
        self.read_named()
    }

    /// Reads arguments under their own names, as leniently as any tool's.
    pub(super) fn read_named<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        let fields = self.read_fields()?;
        self.converted(fields)
    }

    /// Checks arguments under their own names against the schema, and repairs them.
    pub(super) fn read_fields(&mut self) -> Result<Map<String, Value>, Fault> {
        let tool = self.tool;
        let given = Value::Object(std::mem::take(&mut self.arguments));
        let ValidParams { params, repaired } = tool.schema.read(given).map_err(|misfit| {
            let call = json!({ "tool": tool.name, "arguments": misfit.example });
            let message = format!(
                "The arguments do not fit `{}`: {}. It takes {}.",
                tool.name,
                misfit.faults.join("; "),
                tool.schema.signature(tool.name)
            );
            let fault =
                Fault::new(FaultCode::InvalidParams, message).details(json!({ "corrected_call": call }));
            // Without any remaining arguments, the example asks for nothing.
            let helps = misfit.example_fits && !misfit.example.is_empty();
            if helps { fault.next(tool.name, Value::Object(misfit.example)) } else { fault }
        })?;
        self.changes.extend(repaired);
        Ok(params)
    }

    /// Converts checked arguments to their type.
    pub(super) fn converted<T: DeserializeOwned>(&self, fields: Map<String, Value>) -> Result<T, Fault> {
        serde_json::from_value(Value::Object(fields)).map_err(|error| {
            let message = format!("The arguments do not fit `{}`: {error}.", self.tool.name);
            Fault::new(FaultCode::InvalidParams, message)
        })
    }

    /// Reads the actions of a `run_parallel` with the keys `own`, as models write them.
    pub(super) fn actions(&mut self, own: &[&str], schema: &Schema, given: Value) -> Result<Value, Fault> {
        let (actions, changes) = arguments::actions(given);
        self.changes.extend(changes);
        match actions {
            Value::Array(list) if list.len() > MAX_ACTIONS => Err(too_many(list.len())),
            Value::Array(list) => Ok(list.into_iter().map(|one| self.action(own, schema, one)).collect()),
            other => Ok(other),
        }
    }

    /// Reads one action. An `execute_tool` in it is unwrapped.
    fn action(&mut self, own: &[&str], schema: &Schema, given: Value) -> Value {
        let (gateway, caller) = (self.gateway, self.caller);
        let is_nested = |call: &Value| {
            call["name"].as_str().is_some_and(|name| {
                let is_meant = |tool: Option<&str>| tool == Some("execute_tool");
                is_meant(meta_tool(name))
                    && is_meant(Gate::of(&gateway.publisher, &caller.session).meta_tool(name))
            })
        };
        let mut read = self.call_of_tool(own, schema, given);
        for _ in 0..MAX_NESTED {
            let Some(mut inner) = is_nested(&read).then(|| arguments::nested(&read)).flatten() else { break };
            let waits = inner.shift_remove("background").is_none_or(|background| background == false);
            let Value::Object(inner) = self.call_of_tool(own, schema, Value::Object(inner)) else { break };
            if !inner.contains_key("name") {
                break;
            }
            self.changes.push("an `execute_tool` in an action was unwrapped".into());
            if !waits {
                self.changes.push("`background` was ignored: all actions run in one call".into());
            }
            if let Value::Object(outer) = &mut read {
                outer.shift_remove("params");
                outer.extend(inner);
            }
        }
        read
    }

    /// Reads one call of a tool with the keys `own`, as models write it. Unwraps the call first, so that
    /// nothing in it is lost.
    pub(super) fn call_of_tool(&mut self, own: &[&str], schema: &Schema, given: Value) -> Value {
        // The strict form comes first.
        if is_plain(own, &given) {
            return given;
        }
        let gate = self.gate();
        let takes = |tool: &str, param: &str| gate.takes(tool, param);
        let is_server = |given: &str| gate.is_server_name(given);
        let tools = KnownTools { takes: &takes, is_server: &is_server };
        let (opened, changes) = arguments::opened(own, given);
        self.changes.extend(changes);
        let Value::Object(fields) = opened else { return opened };
        let (read, changes) = arguments::call(own, fields, tools);
        self.changes.extend(changes);
        if read.contains_key("name") {
            return Value::Object(read);
        }
        // The key of the name is misspelt; the params may still be beside it.
        let Ok(ValidParams { params, repaired }) = schema.read(Value::Object(read.clone())) else {
            return Value::Object(read);
        };
        self.changes.extend(repaired);
        let (read, changes) = arguments::call(own, params, tools);
        self.changes.extend(changes);
        Value::Object(read)
    }
}

/// Whether a call has a name and an object of params, or a filter instead, and only its own keys.
fn is_plain(own: &[&str], call: &Value) -> bool {
    call.as_object().is_some_and(|fields| {
        // With a handful of keys, comparing them costs less than hashing one.
        let has =
            |name: &str, is: fn(&Value) -> bool| fields.iter().any(|(key, value)| key == name && is(value));
        let is_call = has("name", Value::is_string) && has("params", Value::is_object);
        let is_filter = || has("filter", Value::is_string) && !has("name", |_| true);
        (is_call || is_filter()) && fields.keys().all(|key| own.contains(&key.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_shown_without_what_clients_do_not_need() {
        let schema = object(
            json!({
                "minimum": { "type": "integer", "minimum": 1, "default": 5 },
                "least": { "type": "integer", "minimum": 0 },
                "shownType": any("string", "A value"),
                "list": { "type": "array", "items": object(json!({ "n": any("object", "n") }), &[]) },
                "kind": { "enum": [{ "minimum": 1 }] },
            }),
            &["minimum"],
        );
        let expected = object(
            json!({
                "minimum": { "type": "integer", "default": 5 },
                "least": { "type": "integer", "minimum": 0 },
                "shownType": { "type": "string", "description": "A value" },
                "list": {
                    "type": "array",
                    "items": object(json!({ "n": { "type": "object", "description": "n" } }), &[]),
                },
                "kind": { "enum": [{ "minimum": 1 }] },
            }),
            &["minimum"],
        );
        assert_eq!(as_shown(&schema), expected);
    }
}
