//! Templates in params: `{{id.path.to[0].value}}` puts one call's value into the next call.
//!
//! A string that is a single template becomes the value itself, with its type; a template inside other text becomes text
//! (strings unchanged, everything else as JSON). This room knows JSON and names of values, but nothing of tools.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use regex::Regex;
use serde_json::{Map, Value};

static TEMPLATE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\{\s*([^{}]+?)\s*\}\}").expect("the pattern is constant"));

/// Why a template cannot be filled.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TemplateError {
    /// The first part is not a known name.
    #[error("`{{{{{template}}}}}` names `{name}`, which is none of: {known}")]
    Unknown {
        template: String,
        /// Its first part.
        name: String,
        known: String,
    },
    /// The path leads nowhere.
    #[error("`{{{{{template}}}}}`: `{at}` has no `{step}` ({there})")]
    NoSuchPath {
        template: String,
        /// How far the path led.
        at: String,
        /// The step that failed.
        step: String,
        /// What exists instead.
        there: String,
    },
}

/// Returns the names (first parts) that the templates in `value` use, except for `ref:ID` forms.
pub fn names(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(value, &mut |text| {
        for capture in TEMPLATE.captures_iter(text) {
            let (name, _) = split(&capture[1]);
            if !name.starts_with("ref:") {
                found.insert(name.to_string());
            }
        }
    });
    found
}

/// Returns the IDs of the `ref:ID` forms that the templates in `value` use.
pub fn references(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(value, &mut |text| {
        if text.contains("ref:") {
            let names = TEMPLATE
                .captures_iter(text)
                .filter_map(|capture| split(capture.get(1)?.as_str()).0.strip_prefix("ref:"));
            found.extend(names.map(String::from));
        }
    });
    found
}

fn walk(value: &Value, visit: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        Value::Object(map) => map.values().for_each(|item| walk(item, visit)),
        _ => {}
    }
}

/// The value that a name in a template stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    pub value: Value,
    /// The member that wrapped the value. A path may begin with this member, although it is not part of the value.
    pub wrapper: Option<String>,
    /// The original text, if `value` was parsed from text or came with one.
    pub text: Option<String>,
    /// Whether there is no value, such as for a skipped call: every path in it leads to `null`.
    pub absent: bool,
}

impl Source {
    /// Returns the source for a call that did not run.
    pub fn absent() -> Self {
        Self { absent: true, ..Self::default() }
    }
}

impl From<Value> for Source {
    fn from(value: Value) -> Self {
        Self { value, ..Self::default() }
    }
}

/// JSON with its templates filled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filled {
    pub value: Value,
    /// The inserted values, except text, that replaced a whole string, each with its text form.
    pub inserted: Vec<Inserted>,
}

/// A value that replaced a string consisting of a single template.
#[derive(Clone, Debug, PartialEq)]
pub struct Inserted {
    /// The keys and indices of its place.
    pub path: Vec<String>,
    /// The value as text: the original text, else compact JSON.
    pub text: String,
}

/// The meaning of a name in a template.
pub enum Named {
    Value(Arc<Source>),
    /// Not a name of this caller: the template stays unchanged, for its intended reader.
    Foreign,
    /// An unknown name, which is a fault; holds the known names.
    Unknown(String),
}

/// Fills every template in `value`. `lookup` returns the meaning of a name (`id` or `ref:ID`).
pub fn fill(value: &Value, lookup: &dyn Fn(&str) -> Named) -> Result<Filled, TemplateError> {
    let mut fill = Fill { lookup, path: Vec::new(), inserted: Vec::new() };
    let value = fill.value(value)?;
    Ok(Filled { value, inserted: fill.inserted })
}

/// One walk over JSON with templates.
struct Fill<'a> {
    lookup: &'a dyn Fn(&str) -> Named,
    path: Vec<String>,
    inserted: Vec<Inserted>,
}

impl Fill<'_> {
    fn value(&mut self, value: &Value) -> Result<Value, TemplateError> {
        Ok(match value {
            Value::String(text) => self.text(text)?,
            Value::Array(items) => {
                let filled = items.iter().enumerate().map(|(at, item)| self.below(at.to_string(), item));
                Value::Array(filled.collect::<Result<_, _>>()?)
            }
            Value::Object(map) => {
                let filled = map.iter().map(|(key, item)| Ok((key.clone(), self.below(key.clone(), item)?)));
                Value::Object(filled.collect::<Result<Map<_, _>, _>>()?)
            }
            other => other.clone(),
        })
    }

    fn below(&mut self, step: String, value: &Value) -> Result<Value, TemplateError> {
        self.path.push(step);
        let filled = self.value(value);
        self.path.pop();
        filled
    }

    fn text(&mut self, text: &str) -> Result<Value, TemplateError> {
        if let Some(whole) = TEMPLATE.captures(text)
            && let Some(span) = whole.get(0)
            && span.as_str().len() == text.trim().len()
        {
            let Some(found) = self.resolve(&whole[1])? else { return Ok(Value::String(text.into())) };
            let value = found.value().clone();
            // White space around text is part of the text; around any other value it is not.
            if let Value::String(inner) = value {
                return Ok(Value::String([&text[..span.start()], &inner, &text[span.end()..]].concat()));
            }
            self.inserted.push(Inserted { path: self.path.clone(), text: found.into_text() });
            return Ok(value);
        }
        let mut out = String::new();
        let mut last = 0;
        for capture in TEMPLATE.captures_iter(text) {
            let Some(span) = capture.get(0) else { continue };
            out.push_str(&text[last..span.start()]);
            match self.resolve(&capture[1])? {
                None => out.push_str(span.as_str()),
                Some(found) => out.push_str(&found.into_text()),
            }
            last = span.end();
        }
        out.push_str(&text[last..]);
        Ok(Value::String(out))
    }

    /// Returns the value of a template; `None` for a template that is not this caller's.
    fn resolve(&self, template: &str) -> Result<Option<Resolved>, TemplateError> {
        let (name, path) = split(template);
        let source = match (self.lookup)(name) {
            Named::Value(source) => source,
            Named::Foreign => return Ok(None),
            Named::Unknown(known) => {
                return Err(TemplateError::Unknown { template: template.into(), name: name.into(), known });
            }
        };
        let steps = if source.absent { Vec::new() } else { steps(path) };
        let lost =
            |(at, step, there)| TemplateError::NoSuchPath { template: template.into(), at, step, there };
        let value = match follow(&source.value, name, &steps) {
            Ok(value) => value,
            // The value itself comes first: it may have a member with the wrapper's name.
            Err(why) => match &steps[..] {
                [first, rest @ ..] if source.wrapper.as_deref() == Some(*first) => {
                    follow(&source.value, name, rest).map_err(lost)?
                }
                _ => return Err(lost(why)),
            },
        };
        let whole = std::ptr::eq(value, &source.value);
        let part = (!whole).then(|| value.clone());
        Ok(Some(Resolved { source, part }))
    }
}

/// A source, or a part of one.
struct Resolved {
    source: Arc<Source>,
    part: Option<Value>,
}

impl Resolved {
    fn value(&self) -> &Value {
        self.part.as_ref().unwrap_or(&self.source.value)
    }

    /// Returns text unchanged, and any other value as its original text, else as compact JSON.
    fn into_text(self) -> String {
        match (&self.part, &self.source.text) {
            (None, Some(text)) => text.clone(),
            _ => match self.value() {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
        }
    }
}

/// Returns the keys and indices of a path: `.key`, `.0`, `[0]` and `["key"]`.
fn steps(path: &str) -> Vec<&str> {
    let steps = path.split(['.', '[']).map(|step| step.trim_end_matches(']').trim());
    steps.map(|step| step.trim_matches(['"', '\''])).filter(|step| !step.is_empty()).collect()
}

/// Returns the first part of a template and the rest of its path.
fn split(template: &str) -> (&str, &str) {
    let end = template.find(['.', '[']).unwrap_or(template.len());
    (template[..end].trim(), &template[end..])
}

/// Follows `.key`, `.0` and `[0]` steps. Never parses text as JSON, so that the meaning of a path does not depend on the
/// text.
fn follow<'a>(
    mut value: &'a Value,
    name: &str,
    steps: &[&str],
) -> Result<&'a Value, (String, String, String)> {
    let mut at = name.to_string();
    for step in steps {
        let next = match value {
            Value::Object(map) => map.get(*step),
            Value::Array(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
            _ => None,
        };
        let Some(next) = next else {
            let there = match value {
                Value::Object(map) => {
                    let keys: Vec<&str> = map.keys().take(20).map(String::as_str).collect();
                    format!("its keys: {}", keys.join(", "))
                }
                Value::Array(items) => format!("an array of {}", items.len()),
                Value::String(_) => "it is text".into(),
                other => format!("it is {other}"),
            };
            return Err((at, step.to_string(), there));
        };
        at = format!("{at}.{step}");
        value = next;
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(template: Value, expected: Result<Value, &str>) {
        let a = json!({"n": 7, "list": [{"x": "one"}, "two"], "t": "text"});
        // The source for a result of `{"content": "[1, {\"content\": 2}]"}`.
        let wrapped = Source {
            value: json!([1, {"content": 2}]),
            wrapper: Some("content".into()),
            text: Some("[1, {\"content\": 2}]".into()),
            ..Source::default()
        };
        let (a, wrapped) = (Arc::new(Source::from(a)), Arc::new(wrapped));
        let lookup = |name: &str| match name {
            "a" => Named::Value(a.clone()),
            "w" => Named::Value(wrapped.clone()),
            "foreign" => Named::Foreign,
            "gone" => Named::Value(Arc::new(Source::absent())),
            _ => Named::Unknown("a".into()),
        };
        match expected {
            Ok(value) => assert_eq!(fill(&template, &lookup).map(|filled| filled.value), Ok(value)),
            Err(part) => {
                let error = fill(&template, &lookup).unwrap_err().to_string();
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn templates_are_filled() {
        check(json!("{{a.n}}"), Ok(json!(7)));
        check(json!("n is {{ a.n }}!"), Ok(json!("n is 7!")));
        check(json!("{{a.t}}\n"), Ok(json!("text\n")));
        check(json!(" {{a.n}} "), Ok(json!(7)));
        check(json!({"deep": ["{{a.list[0].x}}", "{{a.list.1}}"]}), Ok(json!({"deep": ["one", "two"]})));
        check(json!("{{a.list}}"), Ok(json!([{"x": "one"}, "two"])));
        check(
            json!("{{a}}-{{a.t}}"),
            Ok(json!("{\"n\":7,\"list\":[{\"x\":\"one\"},\"two\"],\"t\":\"text\"}-text")),
        );
        check(json!("no {braces} here"), Ok(json!("no {braces} here")));
        check(json!("{{foreign.x}} {{a.n}}"), Ok(json!("{{foreign.x}} 7")));
        check(json!({"x": "{{gone.x[0]}}", "y": "{{gone}}"}), Ok(json!({"x": null, "y": null})));
        check(json!("{{b.n}}"), Err("none of: a"));
        check(json!("{{a.missing}}"), Err("its keys: n, list, t"));
        check(json!("{{a.list.9}}"), Err("an array of 2"));
    }

    #[test]
    fn a_path_may_begin_with_the_wrapper() {
        check(json!("{{w}}"), Ok(json!([1, {"content": 2}])));
        check(json!("{{w.content}}"), Ok(json!([1, {"content": 2}])));
        check(json!("{{w.content[0]}}"), Ok(json!(1)));
        check(json!("{{w[0]}}"), Ok(json!(1)));
        check(json!("{{w[1].content}}"), Ok(json!(2)));
        check(json!("it says {{w}}"), Ok(json!("it says [1, {\"content\": 2}]")));
        check(json!("it says {{ w.content }}"), Ok(json!("it says [1, {\"content\": 2}]")));
        check(json!("{{w.result}}"), Err("`w` has no `result`"));
    }

    #[test]
    fn whole_values_are_known_with_their_text() {
        let source =
            Source { value: json!({"a": [1]}), text: Some("{ \"a\": [1] }".into()), ..Source::default() };
        let source = Arc::new(source);
        let template = json!({"x": ["{{r}}"], "y": "{{r.a}}", "z": "in {{r}}"});
        let filled = fill(&template, &|_| Named::Value(source.clone())).unwrap();
        let inserted = |path: &[&str], text: &str| Inserted {
            path: path.iter().map(|step| step.to_string()).collect(),
            text: text.into(),
        };
        assert_eq!(filled.inserted, [inserted(&["x", "0"], "{ \"a\": [1] }"), inserted(&["y"], "[1]")]);
    }

    #[test]
    fn names_are_found() {
        let value = json!({"x": "{{a.b}} {{c}}", "y": ["{{ref:r1.z}}"]});
        assert_eq!(names(&value).into_iter().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(references(&value).into_iter().collect::<Vec<_>>(), ["r1"]);
    }
}
