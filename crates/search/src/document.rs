//! A searchable document, how it is made from a tool's definition, and the texts that represent it.
//!
//! Knows names and descriptions of JSON Schema properties, but no protocol and no connection.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Map, Value};

use super::{
    cache::{self, ContentKey},
    english, text,
    weights::RankingWeights,
};

/// The most parameters read from a definition; a schema may have thousands.
const MOST_PARAMETERS: usize = 64;
/// The characters of a description that count: the purpose comes first.
const MOST_CHARACTERS: usize = 4_000;
/// A description with fewer words says little, so its parameters become part of the dense text. Measured from
/// 8 to 40 words, with and without parameter descriptions: +0.4 points of nDCG on average over seven
/// catalogues, and one more request in a hundred with the right tool first.
const SHORT_DESCRIPTION: usize = 20;
/// The length of such a text with its parameters, in characters. Longer texts take longer to embed.
const SHORT_TEXT: usize = 180;
/// The characters of a parameter's description in the dense text.
const PARAMETER_CHARACTERS: usize = 60;

/// Weighted texts; the normalised sum of their vectors is one vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Passage {
    pub(super) texts: Vec<(String, f32)>,
    pub(super) key: ContentKey,
    /// Texts for the encoder of other languages, repeated from `texts`.
    pub(super) others: Vec<(String, f32)>,
}

impl Passage {
    /// Wraps English texts and their weights.
    pub fn new(texts: Vec<(String, f32)>) -> Passage {
        let heads: Vec<_> =
            texts.iter().map(|(text, weight)| (text.len().to_le_bytes(), weight.to_le_bytes())).collect();
        let parts = texts
            .iter()
            .zip(&heads)
            .flat_map(|((text, _), (length, weight))| [&length[..], text.as_bytes(), &weight[..]]);
        let key = cache::key(parts);
        Passage { texts, key, others: Vec::new() }
    }
}

/// An ordered list of passages. A passage may be built on demand: most are known by their keys.
pub trait Passages: Sync {
    /// Returns the key of each passage.
    fn keys(&self) -> Cow<'_, [ContentKey]>;

    /// Returns the passage at an index.
    fn passage(&self, at: usize) -> Cow<'_, Passage>;
}

impl<P: AsRef<[Passage]> + Sync + ?Sized> Passages for P {
    fn keys(&self) -> Cow<'_, [ContentKey]> {
        self.as_ref().iter().map(|passage| passage.key).collect()
    }

    fn passage(&self, at: usize) -> Cow<'_, Passage> {
        Cow::Borrowed(&self.as_ref()[at])
    }
}

/// Something that search can find.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// The full name, `server.tool`, or another id; unique in an index. Breaks ties.
    pub id: Arc<str>,
    /// The server's name.
    pub group: Arc<str>,
    /// The name within the group; empty for prose.
    pub name: Arc<str>,
    /// A display name, or empty.
    pub title: String,
    /// The description.
    pub description: String,
    /// Additional search terms: aliases and tags, in any language.
    pub terms: Vec<String>,
    /// Name and description of each parameter, including those of nested objects one level deep.
    pub parameters: Vec<(String, String)>,
    /// The group's description, or empty.
    pub group_description: String,
}

impl Document {
    /// Makes the document of a tool from its definition. `input_schema` may be any JSON, or no schema at all.
    #[expect(clippy::too_many_arguments, reason = "a struct for these arguments would be a definition again")]
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

    /// Makes the document of a text that has no name: a note, a fact. Index it with
    /// [`RankingWeights::PROSE`].
    pub fn prose(id: &str, text: &str, terms: Vec<String>) -> Document {
        let description = text::cut(text, MOST_CHARACTERS).to_owned();
        Document { id: id.into(), description, terms, ..Document::default() }
    }

    /// Returns the weighted texts that represent the document: the whole text, its first sentence, the later
    /// parts of a long description, and the name.
    pub fn passage(&self, weights: &RankingWeights) -> Passage {
        let description = match weights.prose {
            true => self.description.trim().to_owned(),
            false => text::without_boilerplate(&self.description),
        };
        let words = description.split_whitespace().count();
        let with_parameters = weights.parameters > 0.0 && words < SHORT_DESCRIPTION;
        let text = |said: &str| self.text(said, with_parameters);
        let mut texts = vec![(text(&description), 1.0)];
        let mut add = |text: String, weight: f32| match texts.iter_mut().find(|(known, _)| *known == text) {
            Some((_, known)) => *known += weight,
            None if text.is_empty() || weight == 0.0 => {}
            None => texts.push((text, weight)),
        };
        add(text(text::first_sentence(&description)), weights.first_sentence);
        add(text::split_identifiers(&self.name), weights.tool_name);
        let windows = text::late_windows(&description);
        let share = weights.late_sentences / windows.len().max(1) as f32;
        windows.iter().for_each(|window| add(text(window), share));
        let is_other = english::is_other_language(&description);
        let others = is_other.then(|| (text(&description), weights.other_language)).into_iter().collect();
        Passage { others, ..Passage::new(texts) }
    }

    /// Returns `server name: description (parameters)` with split identifiers. Leaves out the group's
    /// description, which would make all documents of a group similar.
    fn text(&self, description: &str, with_parameters: bool) -> String {
        let mut text = text::split_identifiers(&format!("{} {}", self.group, self.name));
        let name_words = text::words(&text);
        let mut add = |by: &str, more: &str| {
            // Prose has no name to begin with.
            text.push_str(if text.is_empty() { "" } else { by });
            text.push_str(more);
        };
        if text::words(&self.title).iter().any(|word| !name_words.contains(word)) {
            add(", ", self.title.trim());
        }
        self.terms.iter().for_each(|term| add(", ", term));
        if !description.is_empty() {
            add(": ", description);
        }
        let room = SHORT_TEXT.saturating_sub(text.chars().count());
        if with_parameters && !self.parameters.is_empty() && room > 0 {
            let said: Vec<String> = self.parameters.iter().map(parameter).collect();
            text.push_str(" (");
            text.push_str(text::cut(&said.join(", "), room));
            text.push(')');
        }
        text
    }
}

/// Returns `name: description`.
fn parameter((name, description): &(String, String)) -> String {
    let name = text::split_identifiers(name);
    if description.is_empty() {
        return name;
    }
    format!("{name}: {}", text::cut(text::first_sentence(description), PARAMETER_CHARACTERS))
}

/// Collects the properties of a schema and of nested objects (or lists of objects) one level deep.
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

    fn texts(document: &Document) -> Vec<String> {
        document.passage(&RankingWeights::TOOLS).texts.into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn parameters_are_told_only_where_little_else_is_said() {
        let check = |description: &str, expected: &str| {
            let schema = json!({"properties": {"repo_name": {}, "title": {"description": "The heading of it. In short."}}});
            assert_eq!(texts(&document(description, schema))[0], expected);
        };
        check("", "git Hub create issue (repo name, title: The heading of it.)");
        check(
            "Opens an issue",
            "git Hub create issue: Opens an issue (repo name, title: The heading of it.)",
        );
        let long = "word ".repeat(SHORT_DESCRIPTION);
        check(&long, &format!("git Hub create issue: {}", long.trim()));
        let fewer = "wordy ".repeat(SHORT_DESCRIPTION - 1);
        let text =
            texts(&document(&fewer, json!({"properties": {"repo_name": {"description": "x ".repeat(60)}}})))
                .remove(0);
        assert!(text.ends_with(')') && text.chars().count() <= SHORT_TEXT + 3, "{text}");
    }

    #[test]
    fn whole_text_first_sentence_and_name_stand_for_a_document() {
        let long = document("Opens an issue in a repository. Needs a token with write access.", Value::Null);
        assert_eq!(
            texts(&long),
            [
                "git Hub create issue: Opens an issue in a repository. Needs a token with write access.",
                "git Hub create issue: Opens an issue in a repository.",
                "create issue",
            ]
        );
        let short = document("Opens an issue in a repository of yours or of others.", Value::Null);
        let weights: Vec<f32> =
            short.passage(&RankingWeights::TOOLS).texts.iter().map(|(_, weight)| *weight).collect();
        assert_eq!(weights, [1.0 + RankingWeights::TOOLS.first_sentence, RankingWeights::TOOLS.tool_name]);
        let whole = RankingWeights { first_sentence: 0.0, tool_name: 0.0, ..RankingWeights::TOOLS };
        assert_eq!(long.passage(&whole).texts.len(), 1);
    }

    #[test]
    fn what_is_said_late_has_texts_of_its_own_and_usage_none() {
        let said = "Opens an issue in a repository. ".to_owned() + &"It can carry labels, too. ".repeat(14);
        let late = "Milestones are set at the end.";
        let long = document(
            &format!("{said}\n{late}\n\nArgs:\n  title: the **title**\nReturns: nothing"),
            Value::Null,
        );
        let texts = texts(&long);
        assert!(texts.iter().any(|text| text.ends_with(late)), "{texts:?}");
        assert!(texts.iter().all(|text| !text.contains("Args") && !text.contains("nothing")), "{texts:?}");
        let early = RankingWeights { late_sentences: 0.0, ..RankingWeights::TOOLS };
        assert_eq!(long.passage(&early).texts.len(), 3);
        assert!(long.passage(&RankingWeights::PROSE).texts[0].0.contains("**title**"));
    }

    #[test]
    fn a_title_and_terms_are_part_of_the_text() {
        let mut document = document("Opens an issue in a repository of yours or of others", Value::Null);
        document.title = "Report a bug".to_owned();
        document.terms = vec!["ticket".to_owned()];
        assert!(texts(&document)[0].starts_with("git Hub create issue, Report a bug, ticket: Opens"));
        document.title = "Create Issue".to_owned();
        assert!(texts(&document)[0].starts_with("git Hub create issue, ticket: Opens"));
    }

    #[test]
    fn prose_is_its_text_and_its_terms() {
        let check = |text: &str, terms: &[&str], expected: &[&str]| {
            let terms = terms.iter().map(|term| (*term).to_owned()).collect();
            let passage = Document::prose("1", text, terms).passage(&RankingWeights::PROSE);
            let texts: Vec<String> = passage.texts.into_iter().map(|(text, _)| text).collect();
            assert_eq!(texts, expected);
        };
        check("Deploys are on Tuesdays", &[], &["Deploys are on Tuesdays"]);
        check("Deploys are on Tuesdays", &["ops", "release"], &["ops, release: Deploys are on Tuesdays"]);
    }
}
