//! Skills, servers' prompts and apps as entries of the catalogue: `skills.NAME` and `apps.ID`.
//!
//! Each has a definition like a tool's, so it is found, described and called the same way.

use std::sync::LazyLock;

use nonet_base::text::clip;
use nonet_text::name::{fold, full_name};
use serde_json::{Map, Value, json};

use super::{EntryKind, Tool};

/// The longest description in the catalogue, in characters.
const DESCRIPTION: usize = 4_000;
/// The longest name of a prompt, in characters.
const MAX_NAME: usize = 200;

/// What a folder skill takes: the arguments of `use_skill`.
static SKILL_INPUT: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "type": "object",
        "properties": {
            "arguments": { "description": "What the skill takes: text or an object" },
            "file": { "type": "string", "description": "A file beside the skill, instead of its text" },
        },
    })
});
/// What an app takes if it declares no input.
static APP_INPUT: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "type": "object",
        "properties": { "input": { "description": "What the app takes: text or an object" } },
    })
});

/// Returns the definition of a folder skill.
pub fn skill(name: &str, description: &str) -> Value {
    json!({
        "name": name,
        "description": clip(description, DESCRIPTION),
        "inputSchema": *SKILL_INPUT,
        "annotations": { "readOnlyHint": true },
    })
}

/// Returns the definition of a server's prompt; `None` if the prompt has no usable name.
pub fn prompt(server: &str, listed: &Value) -> Option<Value> {
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = text(listed, "name");
    if name.is_empty() || name.chars().count() > MAX_NAME {
        return None;
    }
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for argument in listed.get("arguments").and_then(Value::as_array).into_iter().flatten() {
        let name = text(argument, "name");
        let mut property = json!({ "type": "string" });
        let description = text(argument, "description");
        if !description.is_empty() {
            property["description"] = json!(clip(&description, DESCRIPTION));
        }
        if argument.get("required") == Some(&Value::Bool(true)) {
            required.push(name.clone());
        }
        properties.insert(name, property);
    }
    let mut schema = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    Some(json!({
        "name": format!("{server}/{name}"),
        "title": text(listed, "title"),
        "description": clip(&text(listed, "description"), DESCRIPTION),
        "inputSchema": schema,
        "annotations": { "readOnlyHint": true },
        "server": server,
    }))
}

/// Returns the definition of a skill that a server offers; `None` if its entry has no usable name.
pub fn server_skill(server: &str, entry: &Value) -> Option<Value> {
    let text = |key: &str| entry.get("frontmatter")?.get(key)?.as_str();
    let name = text("name").filter(|name| !name.is_empty() && name.chars().count() <= MAX_NAME)?;
    Some(json!({
        "name": format!("{server}/{name}"),
        "description": clip(text("description").unwrap_or_default(), DESCRIPTION),
        "inputSchema": *SKILL_INPUT,
        "annotations": { "readOnlyHint": true },
        "server": server,
    }))
}

/// Returns the definition of an app.
pub fn app(id: &str, description: &str, input_schema: Option<&Value>) -> Value {
    json!({
        "name": id,
        "description": clip(description, DESCRIPTION),
        "inputSchema": input_schema.unwrap_or(&APP_INPUT),
        // The app's tools may do anything; each call is judged by itself.
        "annotations": { "readOnlyHint": false, "destructiveHint": false },
    })
}

/// Returns whether `given` names this skill or app, in any spelling: bare, or as the catalogue names it.
pub fn is_named(kind: EntryKind, name: &str, given: &str) -> bool {
    let given = fold(given);
    given == fold(name) || kind.category().is_some_and(|category| given == fold(&full_name(category, name)))
}

impl Tool {
    /// Returns a prompt's name at its server; for anything else, the whole name.
    pub fn name_at_server(&self) -> &str {
        let prompt = self.of.as_deref().and_then(|server| self.name.strip_prefix(server)?.strip_prefix('/'));
        prompt.unwrap_or(&self.name)
    }

    /// Returns the input schema, if it says something about the entry.
    pub(super) fn telling_schema(&self) -> &Value {
        let schema = self.schema.raw();
        let is_general = schema == &*SKILL_INPUT || schema == &*APP_INPUT;
        if self.kind != EntryKind::Tool && is_general { &Value::Null } else { schema }
    }

    /// Returns the app's input in these params. An app without an input schema takes `input`, or all the
    /// params.
    pub fn app_input(&self, mut params: Map<String, Value>) -> Value {
        let is_general = self.schema.raw() == &*APP_INPUT;
        match params.len() {
            0 => Value::Null,
            1 if is_general => params.shift_remove("input").unwrap_or(Value::Object(params)),
            _ => Value::Object(params),
        }
    }

    /// Returns the meta-tool that runs it, and the arguments for these params.
    pub fn meta_call(&self, params: &Map<String, Value>) -> (&'static str, Map<String, Value>) {
        let mut params = params.clone();
        let mut arguments = Map::new();
        let mut put = |key: &str, value: Value| drop(arguments.insert(key.into(), value));
        let meta_tool = match self.kind {
            EntryKind::Tool => {
                put("name", json!(&*self.full));
                put("params", Value::Object(params));
                "execute_tool"
            }
            EntryKind::Skill => {
                put("command", json!(&*self.name));
                if self.of.is_none() || self.schema.raw() == &*SKILL_INPUT {
                    for key in ["arguments", "file"] {
                        if let Some(value) = params.shift_remove(key) {
                            put(key, value);
                        }
                    }
                }
                // For a folder skill: params under names of their own.
                if !params.is_empty() {
                    put("arguments", Value::Object(params));
                }
                "use_skill"
            }
            EntryKind::App => {
                put("app_id", json!(&*self.name));
                if !params.is_empty() {
                    put("input", self.app_input(params));
                }
                "call_app"
            }
        };
        (meta_tool, arguments)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::catalog::{APPS, Catalog, CatalogSource, Listing, SKILLS};
    use nonet_config::Risk;

    fn catalog() -> Catalog {
        let greet = json!({ "name": "greet", "title": "Greet", "arguments": [{ "name": "who", "required": true }, { "name": "how" }] });
        let schema =
            json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
        let skills = vec![skill("notes", "Writes notes"), prompt("folk", &greet).expect("it has a name")];
        let apps = vec![app("weekly", "Sends", None), app("strict", "", Some(&schema))];
        let source = |server: &str, tools: Vec<Value>| CatalogSource {
            server: server.into(),
            listing: Arc::new(Listing {
                tools: tools.into_iter().map(Arc::new).collect(),
                ..Listing::default()
            }),
            settings: None,
        };
        let shop = source("shop", vec![json!({ "name": "notes" }), json!({ "name": "weekly" })]);
        let folk = source("folk", vec![json!({ "name": "greet" })]);
        Catalog::new([source(SKILLS, skills), source(APPS, apps), shop, folk], &Default::default())
    }

    #[test]
    fn each_has_a_call_to_copy_and_runs_by_the_same_one() {
        let catalog = catalog();
        let check = |name: &str, params: Value, tool: &str, arguments: Value| {
            let entry = catalog.get(name).expect("it is there");
            let params = params.as_object().expect("an object");
            let call = json!({ "tool": tool, "arguments": arguments });
            assert_eq!(json!(entry.call_with(params)), call, "{name} {params:?}");
        };
        check("skills.notes", json!({}), "use_skill", json!({ "command": "notes" }));
        let file = json!({ "arguments": "v2", "file": "a.md" });
        check(
            "skills.notes",
            file,
            "use_skill",
            json!({ "command": "notes", "arguments": "v2", "file": "a.md" }),
        );
        check(
            "skills.notes",
            json!({ "v": 2 }),
            "use_skill",
            json!({ "command": "notes", "arguments": { "v": 2 } }),
        );
        let who = json!({ "command": "folk/greet", "arguments": { "who": "Ada" } });
        check("skills.folk/greet", json!({ "who": "Ada" }), "use_skill", who);
        check(
            "apps.weekly",
            json!({ "input": "x" }),
            "call_app",
            json!({ "app_id": "weekly", "input": "x" }),
        );
        check(
            "apps.weekly",
            json!({ "to": "x" }),
            "call_app",
            json!({ "app_id": "weekly", "input": { "to": "x" } }),
        );
        check("apps.weekly", json!({}), "call_app", json!({ "app_id": "weekly" }));
        check(
            "apps.strict",
            json!({ "n": 1 }),
            "call_app",
            json!({ "app_id": "strict", "input": { "n": 1 } }),
        );
        let example = json!({ "command": "folk/greet", "arguments": { "who": "<string>" } });
        assert_eq!(catalog.get("skills.folk/greet").expect("it is there").call().arguments, example);
    }

    #[test]
    fn a_bare_name_means_a_servers_tool_first() {
        let catalog = catalog();
        let check = |given: &str, full: &str| {
            assert_eq!(&*catalog.resolve(given).expect("it is known").full, full, "{given}");
        };
        for (given, full) in [
            ("notes", "shop.notes"),
            ("weekly", "shop.weekly"),
            ("strict", "apps.strict"),
            ("skills.notes", "skills.notes"),
            ("skills__notes", "skills.notes"),
            ("apps/weekly", "apps.weekly"),
            ("folk/greet", "folk.greet"),
            ("skills.folk/greet", "skills.folk/greet"),
            ("skills__folk_greet", "skills.folk/greet"),
        ] {
            check(given, full);
        }
        let fault = catalog.resolve("skills.note").expect_err("it is not there");
        assert_eq!(fault.did_you_mean.first().map(String::as_str), Some("skills.notes"));
    }

    #[test]
    fn what_an_entry_is_follows_from_its_category() {
        let catalog = catalog();
        let of = |name: &str| {
            let tool = catalog.get(name).expect("it is there");
            (tool.kind, tool.risk, tool.of.as_deref(), tool.document("about").group.to_string())
        };
        assert_eq!(of("shop.notes"), (EntryKind::Tool, Risk::Medium, None, "shop".into()));
        assert_eq!(of("skills.notes"), (EntryKind::Skill, Risk::Low, None, String::new()));
        assert_eq!(of("skills.folk/greet"), (EntryKind::Skill, Risk::Low, Some("folk"), "folk".into()));
        assert_eq!(of("apps.weekly"), (EntryKind::App, Risk::Medium, None, String::new()));
        assert!(catalog.get("apps.weekly").expect("it is there").document("").parameters.is_empty());
        assert_eq!(prompt("folk", &json!({ "name": "x".repeat(MAX_NAME + 1) })), None);
    }
}
