//! What can be found: a document, how one is made from a tool's definition, and the texts that stand for it.
//!
//! Knows JSON Schema as far as properties have names and descriptions; has not heard of a protocol or a connection.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::text;

/// Parameters of a definition that are looked at; a schema may have thousands.
const MOST_PARAMETERS: usize = 64;
/// Characters of a description that count. What a tool is for stands at the beginning.
const MOST_CHARACTERS: usize = 4_000;
/// A description with fewer words says little: the parameters' names are then part of the dense text.
const SHORT_DESCRIPTION: usize = 8;

/// Something that search can find.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// The full name, `server.tool`; unique in an index. Decides between equal scores.
    pub id: Arc<str>,
    /// What it belongs to: the server's name.
    pub group: Arc<str>,
    /// Its own name within the group.
    pub name: Arc<str>,
    /// A name for people, or empty.
    pub title: String,
    /// What it does.
    pub description: String,
    /// Other words for it: aliases and tags, in any language.
    pub terms: Vec<String>,
    /// Name and description of each parameter, those of nested objects one level deep included.
    pub parameters: Vec<(String, String)>,
    /// What the group is for, or empty.
    pub group_description: String,
}

impl Document {
    /// Makes the document of a tool from its definition. `input_schema` may be any JSON, also no schema at all.
    #[allow(clippy::too_many_arguments)] // A definition has these parts; a struct for them would be this one again.
    pub fn from_definition(
        id: &str,
        server: &str,
        name: &str,
        title: &str,
        description: &str,
        input_schema: &Value,
        terms: Vec<String>,
        server_description: &str,
    ) -> Document {
        let mut parameters = Vec::new();
        collect(input_schema, true, &mut parameters);
        Document {
            id: id.into(),
            group: server.into(),
            name: name.into(),
            title: title.to_owned(),
            description: text::cut(description, MOST_CHARACTERS).to_owned(),
            terms,
            parameters,
            group_description: text::cut(server_description, MOST_CHARACTERS).to_owned(),
        }
    }

    /// The text whose vector stands for the document: `server name: description`, identifiers split. The group's
    /// description is left out, because it makes all documents of a group alike.
    pub fn dense_text(&self) -> String {
        let mut text = text::split_identifiers(&format!("{} {}", self.group, self.name));
        let name_words = text::words(&text);
        if text::words(&self.title).iter().any(|word| !name_words.contains(word)) {
            text.push_str(", ");
            text.push_str(self.title.trim());
        }
        for term in &self.terms {
            text.push_str(", ");
            text.push_str(term);
        }
        let description = self.description.trim();
        if !description.is_empty() {
            text.push_str(": ");
            text.push_str(description);
        }
        if !self.parameters.is_empty() && description.split_whitespace().count() < SHORT_DESCRIPTION {
            let names: Vec<String> =
                self.parameters.iter().map(|(name, _)| text::split_identifiers(name)).collect();
            text.push_str(" (");
            text.push_str(&names.join(", "));
            text.push(')');
        }
        text
    }
}

/// The properties of a schema, and of the objects (or lists of objects) among them one level down.
fn collect(schema: &Value, descend: bool, parameters: &mut Vec<(String, String)>) {
    let properties: Option<&Map<String, Value>> = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        if parameters.len() == MOST_PARAMETERS {
            return;
        }
        let description = property.get("description").and_then(Value::as_str).unwrap_or_default();
        parameters.push((name.clone(), text::cut(description, MOST_CHARACTERS).to_owned()));
        if descend {
            collect(property, false, parameters);
            collect(property.get("items").unwrap_or(&Value::Null), false, parameters);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(description: &str, schema: Value) -> Document {
        Document::from_definition(
            "gitHub.create_issue",
            "gitHub",
            "create_issue",
            "",
            description,
            &schema,
            vec![],
            "",
        )
    }

    #[test]
    fn parameters_come_from_two_levels_of_any_json() {
        let check = |schema: Value, expected: &[&str]| {
            let names: Vec<String> =
                document("", schema).parameters.into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, expected);
        };
        check(Value::Null, &[]);
        check(json!([1, "x"]), &[]);
        check(json!({"properties": []}), &[]);
        check(json!({"properties": {"a": true, "b": {"description": 3}}}), &["a", "b"]);
        check(
            json!({"properties": {
                "a": {"properties": {"b": {"properties": {"c": {}}}}},
                "d": {"type": "array", "items": {"properties": {"e": {}}}}
            }}),
            &["a", "b", "d", "e"],
        );
    }

    #[test]
    fn the_dense_text_names_parameters_only_where_little_else_is_said() {
        let check = |description: &str, expected: &str| {
            let schema = json!({"properties": {"repo_name": {}}});
            assert_eq!(document(description, schema).dense_text(), expected);
        };
        check("", "git Hub create issue (repo name)");
        check("Opens an issue", "git Hub create issue: Opens an issue (repo name)");
        check(
            "Opens an issue in a repository of yours or of others",
            "git Hub create issue: Opens an issue in a repository of yours or of others",
        );
    }

    #[test]
    fn a_title_and_terms_are_part_of_the_dense_text() {
        let mut document = document("Opens an issue in a repository of yours or of others", Value::Null);
        document.title = "Report a bug".to_owned();
        document.terms = vec!["ticket".to_owned()];
        assert!(document.dense_text().starts_with("git Hub create issue, Report a bug, ticket: Opens"));
        document.title = "Create Issue".to_owned();
        assert!(document.dense_text().starts_with("git Hub create issue, ticket: Opens"));
    }
}
