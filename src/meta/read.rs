//! A meta-tool, and how one call of it is read.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::arguments::{self, KnownTools};
use crate::{
    aliases::Aliases,
    fault::{Code, Fault},
    gateway::{Gate, Gateway, Interrupt, session::Caller},
    results::CallResult,
    schema::{Reading, Schema},
};

/// Answers a call of a meta-tool with a `CallToolResult`.
pub(super) type Handler =
    for<'a, 'b> fn(&'a mut MetaCall<'b>) -> BoxFuture<'a, Result<CallResult, Interrupt>>;

/// A hint of a definition.
#[derive(Clone, Copy)]
pub(super) enum Hint {
    ReadOnly,
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

/// A meta-tool.
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
        let mut definition = json!({ "name": name, "description": description, "inputSchema": schema });
        for hint in hints {
            match hint {
                Hint::ReadOnly => definition["annotations"] = json!({ "readOnlyHint": true }),
                Hint::AlwaysLoad => definition["_meta"] = json!({ "anthropic/alwaysLoad": true }),
                Hint::MayBeTask => definition["execution"] = json!({ "taskSupport": "optional" }),
            }
        }
        let schema = Schema::of_tool(name, schema);
        let own = schema.parameters().iter().map(|parameter| parameter.name.to_string()).collect();
        Self { name, definition, aliases, run, schema, own }
    }
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
    pub fn gate(&self) -> Gate {
        self.gateway.gate(&self.caller.session)
    }

    /// Returns the notice about changed arguments, if there are any.
    pub fn notices(&mut self) -> Vec<Value> {
        let changes = std::mem::take(&mut self.changes);
        let notice = || json!({ "kind": "arguments_repaired", "tool": self.tool.name, "changes": changes });
        if changes.is_empty() { Vec::new() } else { vec![notice()] }
    }

    /// Renames the arguments to the meta-tool's own names.
    pub fn rename(&mut self) {
        let own: Vec<&str> = self.tool.own.iter().map(String::as_str).collect();
        let given = std::mem::take(&mut self.arguments);
        let (arguments, changes) = arguments::named(self.tool.name, &own, self.tool.aliases, given);
        self.arguments = arguments;
        self.changes.extend(changes);
    }

    /// Reads the arguments, including aliases.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        self.rename();
        self.read_named()
    }

    /// Reads arguments under their own names, as leniently as any tool's.
    pub fn read_named<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        let tool = self.tool;
        let given = Value::Object(std::mem::take(&mut self.arguments));
        let Reading { params, repaired } = tool.schema.read(given).map_err(|misfit| {
            let call = json!({ "tool": tool.name, "arguments": misfit.example });
            let message = format!(
                "The arguments do not fit `{}`: {}. It takes {}.",
                tool.name,
                misfit.faults.join("; "),
                tool.schema.signature(tool.name)
            );
            let fault = Fault::new(Code::InvalidParams, message).details(json!({ "corrected_call": call }));
            // Without any remaining arguments, the example asks for nothing.
            let helps = misfit.example_fits && !misfit.example.is_empty();
            if helps { fault.next(tool.name, Value::Object(misfit.example)) } else { fault }
        })?;
        self.changes.extend(repaired);
        serde_json::from_value(Value::Object(params)).map_err(|error| {
            let message = format!("The arguments do not fit `{}`: {error}.", tool.name);
            Fault::new(Code::InvalidParams, message)
        })
    }

    /// Reads one call of a tool with the keys `own`, as models write it. Unwraps the call first, so that nothing in it
    /// is lost.
    pub fn call_of_tool(&mut self, own: &[&str], schema: &Schema, given: Value) -> Value {
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
        let Ok(Reading { params, repaired }) = schema.read(Value::Object(read.clone())) else {
            return Value::Object(read);
        };
        self.changes.extend(repaired);
        let (read, changes) = arguments::call(own, params, tools);
        self.changes.extend(changes);
        Value::Object(read)
    }
}

/// Whether a call has a name, an object of params, and only its own keys.
fn is_plain(own: &[&str], call: &Value) -> bool {
    call.as_object().is_some_and(|fields| {
        fields.get("name").is_some_and(Value::is_string)
            && fields.get("params").is_some_and(Value::is_object)
            && fields.keys().all(|key| own.contains(&key.as_str()))
    })
}
