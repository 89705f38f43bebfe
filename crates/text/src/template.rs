//! Templates in params: `{{id.path.to[0].value}}` puts one call's value into the next call, `{{ref:ID.path}}`
//! a kept result.
//!
//! A string that is a single template becomes the value itself, with its type; a template inside other text
//! becomes text (strings unchanged, everything else as JSON). `{{literal:x}}` is the text `{{x}}`. This room
//! knows JSON and names of values, but nothing of tools.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use nonet_base::text::clip;
use regex::Regex;
use serde_json::{Map, Value};

static TEMPLATE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\{([^{}]+)\}\}").expect("the pattern is constant"));

/// A reference to a kept result, or the handle of a task, anywhere in a text.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:r-[0-9A-Fa-f]{10}|job-[0-9A-Fa-f]{12})\b").expect("the pattern is constant")
});

/// What names of kept results begin with.
const OF_KEPT: &str = "ref:";
/// What a template begins with that stands for text in braces.
const LITERAL: &str = "literal:";

/// Why a template cannot be filled.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TemplateError {
    /// It cannot be read.
    #[error("`{{{{{template}}}}}` cannot be read: {why}")]
    Malformed {
        /// The text between its braces.
        template: String,
        /// What is wrong, and what was expected.
        why: String,
    },
    /// The first part is not a known name.
    #[error("`{{{{{template}}}}}` names `{name}`, which is none of: {known}")]
    Unknown {
        /// The text between its braces.
        template: String,
        /// Its first part.
        name: String,
        /// The known names, joined by commas.
        known: String,
    },
    /// The path leads nowhere.
    #[error("`{{{{{template}}}}}`: `{at}` has no `{step}` ({there})")]
    NoSuchPath {
        /// The text between its braces.
        template: String,
        /// How far the path led.
        at: String,
        /// The step that failed.
        step: String,
        /// What exists instead.
        there: String,
    },
}

impl TemplateError {
    /// Returns the fault of a template in the place of a reference that is none.
    pub fn no_reference(template: &str) -> Self {
        let why = format!(
            "a kept result is `{{{{ref:r-0123456789}}}}`, with a path if need be. Text in braces is written `{{{{{LITERAL}{template}}}}}`"
        );
        Self::Malformed { template: template.into(), why }
    }
}

/// What a template stands for.
enum Meaning<'a> {
    /// A value under a name (`id` or `ref:ID`), and a path in it.
    Named(Cow<'a, str>, &'a str),
    /// Text that stays in braces.
    Literal(&'a str),
}

/// Returns the meaning of what is between the braces of a template. A blank beside `ref:`, and a reference
/// without it, are forgiven; anything else in the place of a reference is a fault.
fn meaning(inside: &str) -> Result<Meaning<'_>, TemplateError> {
    if let Some(text) = inside.trim_start().strip_prefix(LITERAL) {
        return Ok(Meaning::Literal(text));
    }
    let end = inside.find(['.', '[']).unwrap_or(inside.len());
    let (name, path) = (inside[..end].trim(), &inside[end..]);
    let given = match name.split_once(':') {
        Some((kind, id)) if kind.trim().eq_ignore_ascii_case("ref") => id.trim(),
        _ if REFERENCE.is_match(name) => name,
        _ => return Ok(Meaning::Named(name.into(), path)),
    };
    if is_reference(given) {
        return Ok(Meaning::Named(format!("{OF_KEPT}{given}").into(), path));
    }
    Err(TemplateError::no_reference(inside.trim()))
}

/// Returns whether a text has the form of a reference to a kept result. A task's handle is such a reference
/// too.
pub fn is_reference(text: &str) -> bool {
    REFERENCE.find(text).is_some_and(|found| found.len() == text.len())
}

/// Returns the names (first parts) that the templates in `value` use, except for `ref:ID` forms.
pub fn names(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(value, &mut |inside| {
        if let Ok(Meaning::Named(name, _)) = meaning(inside)
            && !name.starts_with(OF_KEPT)
        {
            found.insert(name.into_owned());
        }
    });
    found
}

/// What templates use without a plan.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TemplateUses {
    /// The IDs of the kept results. `true`: a path begins with the blocks of the result.
    pub kept: BTreeMap<String, bool>,
    /// Whether there is text in braces.
    pub has_literals: bool,
    /// The first template that only begins like a reference, such as `r-f2`. In a plan it may be the id of a
    /// call.
    pub almost: Option<String>,
}

/// Returns the kept results that templates use. Other names are not checked.
pub fn references<'a>(all: impl IntoIterator<Item = &'a Value>) -> Result<TemplateUses, TemplateError> {
    let mut found = TemplateUses::default();
    let mut visit = |inside: &str| {
        match meaning(inside)? {
            Meaning::Literal(_) => found.has_literals = true,
            Meaning::Named(name, path) => {
                if let Some(id) = name.strip_prefix(OF_KEPT) {
                    let around = steps(inside, path)?.first().is_some_and(|first| AROUND.contains(first));
                    *found.kept.entry(id.into()).or_default() |= around;
                } else if ["r-", "job-"].iter().any(|kind| name.starts_with(kind)) {
                    found.almost.get_or_insert_with(|| inside.trim().into());
                }
            }
        }
        Ok(())
    };
    all.into_iter().try_for_each(|value| try_walk(value, &mut visit))?;
    Ok(found)
}

/// Checks that every template in `value` can be read. Names and members are not looked up.
pub fn check(value: &Value) -> Result<(), TemplateError> {
    try_walk(value, &mut |inside| match meaning(inside)? {
        Meaning::Named(_, path) => steps(inside, path).map(drop),
        Meaning::Literal(_) => Ok(()),
    })
}

/// Visits what is between the braces of each template.
fn walk(value: &Value, visit: &mut dyn FnMut(&str)) {
    let _ = try_walk(value, &mut |inside| {
        visit(inside);
        Ok(())
    });
}

fn try_walk(
    value: &Value,
    visit: &mut dyn FnMut(&str) -> Result<(), TemplateError>,
) -> Result<(), TemplateError> {
    match value {
        Value::String(text) if text.contains("{{") => {
            let mut all = TEMPLATE.captures_iter(text).filter_map(|capture| capture.get(1));
            all.try_for_each(|inside| visit(inside.as_str()))
        }
        Value::Array(items) => items.iter().try_for_each(|item| try_walk(item, visit)),
        Value::Object(map) => map.values().try_for_each(|item| try_walk(item, visit)),
        _ => Ok(()),
    }
}

/// The value that a name in a template stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateSource {
    /// The value without its wrapper: JSON, or a string for text that is not JSON.
    pub value: Value,
    /// The member that wrapped the value. A path may begin with this member, although it is not part of the
    /// value.
    pub wrapper: Option<String>,
    /// The original text, if `value` was parsed from text or came with one.
    pub text: Option<String>,
    /// The whole result, for paths that begin with its blocks. A picture is such a block.
    pub result: Option<Arc<Value>>,
    /// Whether there is no value, such as for a skipped call: every path in it leads to `null`.
    pub absent: bool,
    /// The member that a name without a path means, such as the answer to a question.
    pub main: Option<&'static str>,
}

impl TemplateSource {
    /// Returns the source for a call that did not run.
    pub fn absent() -> Self {
        Self { absent: true, ..Self::default() }
    }
}

impl From<Value> for TemplateSource {
    fn from(value: Value) -> Self {
        Self { value, ..Self::default() }
    }
}

/// JSON with its templates filled.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FilledTemplate {
    /// The JSON after filling. Foreign templates stay as written.
    pub value: Value,
    /// The inserted values, except text, that replaced a whole string, each with its text form.
    pub inserted: Vec<InsertedValue>,
}

/// A value that replaced a string consisting of a single template.
#[derive(Clone, Debug, PartialEq)]
pub struct InsertedValue {
    /// The keys and indices of its place.
    pub path: Vec<String>,
    /// The value as text: the original text, else compact JSON.
    pub text: String,
}

/// The meaning of a name in a template.
pub enum NameLookup {
    /// A known name, with its value.
    Value(Arc<TemplateSource>),
    /// Not a name of this caller: the template stays unchanged, for its intended reader.
    Foreign,
    /// An unknown name, which is a fault; holds the known names.
    Unknown(String),
}

/// Fills every template in `value`. `lookup` returns the meaning of a name (`id` or `ref:ID`).
pub fn fill(value: &Value, lookup: &dyn Fn(&str) -> NameLookup) -> Result<FilledTemplate, TemplateError> {
    let mut fill = Fill { lookup, path: Vec::new(), inserted: Vec::new() };
    let value = fill.value(value)?;
    Ok(FilledTemplate { value, inserted: fill.inserted })
}

/// One walk over JSON with templates.
struct Fill<'a> {
    lookup: &'a dyn Fn(&str) -> NameLookup,
    path: Vec<String>,
    inserted: Vec<InsertedValue>,
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
            let around =
                |inner: &str| Value::String([&text[..span.start()], inner, &text[span.end()..]].concat());
            let found = match self.resolve(&whole[1])? {
                Piece::AsWritten => return Ok(Value::String(text.into())),
                Piece::Text(inner) => return Ok(around(&inner)),
                Piece::Value(found) => found,
            };
            // White space around text is part of the text; around any other value it is not.
            if let Value::String(inner) = found.value() {
                return Ok(around(inner));
            }
            let value = found.value().clone();
            self.inserted.push(InsertedValue { path: self.path.clone(), text: found.into_text() });
            return Ok(value);
        }
        let mut out = String::new();
        let mut last = 0;
        for capture in TEMPLATE.captures_iter(text) {
            let Some(span) = capture.get(0) else { continue };
            out.push_str(&text[last..span.start()]);
            match self.resolve(&capture[1])? {
                Piece::AsWritten => out.push_str(span.as_str()),
                Piece::Text(inner) => out.push_str(&inner),
                Piece::Value(found) => out.push_str(&found.into_text()),
            }
            last = span.end();
        }
        out.push_str(&text[last..]);
        Ok(Value::String(out))
    }

    /// Returns what takes the place of a template.
    fn resolve(&self, inside: &str) -> Result<Piece, TemplateError> {
        let (name, path) = match meaning(inside)? {
            Meaning::Literal(text) => return Ok(Piece::Text(format!("{{{{{text}}}}}"))),
            Meaning::Named(name, path) => (name, path),
        };
        let template = || inside.trim().to_string();
        let source = match (self.lookup)(&name) {
            NameLookup::Value(source) => source,
            NameLookup::Foreign => return Ok(Piece::AsWritten),
            NameLookup::Unknown(known) => {
                return Err(TemplateError::Unknown { template: template(), name: name.into(), known });
            }
        };
        let mut steps = if source.absent { Vec::new() } else { steps(inside, path)? };
        if steps.is_empty() {
            steps.extend(source.main);
        }
        let lost = |(at, step, there)| TemplateError::NoSuchPath { template: template(), at, step, there };
        let value = match follow(&source.value, &name, &steps) {
            Ok(value) => value,
            // The value itself comes first: it may have a member with the name of the wrapper, or of a part
            // of the result.
            Err(why) => match (&steps[..], &source.result) {
                ([first, rest @ ..], _) if source.wrapper.as_deref() == Some(*first) => {
                    follow(&source.value, &name, rest).map_err(lost)?
                }
                ([first, ..], Some(result)) if AROUND.contains(first) => {
                    follow(result, &name, &steps).map_err(lost)?
                }
                _ => return Err(lost(why)),
            },
        };
        let whole = std::ptr::eq(value, &source.value);
        let part = (!whole).then(|| value.clone());
        Ok(Piece::Value(ResolvedSource { source, part }))
    }
}

/// What takes the place of a template.
enum Piece {
    /// The template itself: it is not this caller's.
    AsWritten,
    Text(String),
    Value(ResolvedSource),
}

/// A source, or a part of one.
struct ResolvedSource {
    source: Arc<TemplateSource>,
    part: Option<Value>,
}

impl ResolvedSource {
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

/// The members of a result that a path may begin with, although they are not part of its value.
const AROUND: [&str; 2] = ["content", "structuredContent"];

/// Returns the keys and indices of a path: `.key`, `.0`, `[0]` and `["key"]`.
fn steps<'a>(inside: &str, path: &'a str) -> Result<Vec<&'a str>, TemplateError> {
    let mut steps = Vec::new();
    let mut rest = path.trim();
    while !rest.is_empty() {
        let Some((step, after)) = first_step(rest) else {
            let at = clip(rest, 40);
            let why = format!(
                "at `{at}`, where a path has only keys and indices, such as `.rows[0].name` or `[\"a key\"]`; `select` of the call that gives the value can do more"
            );
            return Err(TemplateError::Malformed { template: inside.trim().into(), why });
        };
        steps.push(step);
        rest = after.trim_start();
    }
    Ok(steps)
}

/// Splits a path after its first key or index.
fn first_step(path: &str) -> Option<(&str, &str)> {
    let after_dot = path.strip_prefix('.').map(str::trim_start);
    let (step, rest, is_key) = match after_dot.unwrap_or(path).strip_prefix('[') {
        Some(index) => index.split_once(']').map(|(step, rest)| (step, rest, false))?,
        None => {
            let key = after_dot?;
            let end = key.find(['.', '[']).unwrap_or(key.len());
            (&key[..end], &key[end..], true)
        }
    };
    let step = step.trim();
    let quoted = ['"', '\''].iter().find_map(|quote| step.strip_prefix(*quote)?.strip_suffix(*quote));
    let is_plain = !step.is_empty() && step != "*" && !step.contains(['|', ']', '?']);
    let step = quoted.or(Some(step).filter(|step| is_plain && (is_key || !step.contains(':'))))?;
    Some((step, rest))
}

/// Follows `.key`, `.0` and `[0]` steps; `-1` is the last item. Never parses text as JSON, so that the
/// meaning of a path does not depend on the text.
fn follow<'a>(
    mut value: &'a Value,
    name: &str,
    steps: &[&str],
) -> Result<&'a Value, (String, String, String)> {
    let mut at = name.to_string();
    for step in steps {
        let next = match value {
            Value::Object(map) => map.get(*step),
            Value::Array(items) => match step.strip_prefix('-') {
                Some(back) => back.parse().ok().and_then(|back| items.get(items.len().checked_sub(back)?)),
                None => step.parse::<usize>().ok().and_then(|index| items.get(index)),
            },
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
        let wrapped = TemplateSource {
            value: json!([1, {"content": 2}]),
            wrapper: Some("content".into()),
            text: Some("[1, {\"content\": 2}]".into()),
            ..TemplateSource::default()
        };
        let (a, wrapped) = (Arc::new(TemplateSource::from(a)), Arc::new(wrapped));
        let lookup = |name: &str| match name {
            "a" => NameLookup::Value(a.clone()),
            "w" => NameLookup::Value(wrapped.clone()),
            "foreign" => NameLookup::Foreign,
            "gone" => NameLookup::Value(Arc::new(TemplateSource::absent())),
            "asked" => {
                let value = json!({ "status": "answered", "answer": ["x", "y"] });
                NameLookup::Value(Arc::new(TemplateSource {
                    main: Some("answer"),
                    ..TemplateSource::from(value)
                }))
            }
            _ => NameLookup::Unknown("a".into()),
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
        check(json!("{{asked}}"), Ok(json!(["x", "y"])));
        check(json!("{{asked.answer.0}}, {{asked.status}}"), Ok(json!("x, answered")));
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
        check(json!("{{a.list[-1]}} {{ a . list . 0 . x }} {{a[\"t\"]}}"), Ok(json!("two one text")));
        check(json!("{{a.list[-3]}}"), Err("an array of 2"));
        check(json!("{{literal:a.n}}, {{literal: b }} and {{a.n}}"), Ok(json!("{{a.n}}, {{ b }} and 7")));
        check(json!("{{literal:ref:x}}"), Ok(json!("{{ref:x}}")));
        check(json!("{{b.n}} {{a.x[}}"), Err("none of: a"));
        check(json!("{{a.list[].x}}"), Err("at `[].x`"));
    }

    #[test]
    fn what_cannot_be_read_is_known_before_a_value_is() {
        let wrong = |text: &str| {
            let error = super::check(&json!([text])).expect_err(text).to_string();
            assert!(error.contains("cannot be read"), "{error}");
            error
        };
        for text in
            ["{{a.x[}}", "{{a.x[0:3]}}", "{{a..b}}", "{{a.}}", "{{a.b | length}}", "{{a.*.b}}", "{{a.b?}}"]
        {
            wrong(text);
            assert_eq!(
                references([&json!(text)]),
                Ok(TemplateUses::default()),
                "{text} may be somebody else's"
            );
        }
        for text in [
            "{{ref:r-nope}}",
            "{{ref:}}",
            "{{ ref : main }}",
            "{{ref r-0123456789}}",
            "{{r-0123456789 | length}}",
        ] {
            assert!(wrong(text).contains("{{literal:"), "{text}");
            assert!(references([&json!(text)]).is_err(), "{text}");
        }
        for text in
            ["{{a.b c[0]['d.e']}}", "{{ref}}", "{{literal:ref:x}}", "{ref:x}", "{{}}", "{{name}} {{#each}}"]
        {
            assert_eq!(super::check(&json!(text)), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_path_may_begin_with_the_blocks() {
        let result =
            json!({ "content": [{ "type": "text", "text": "a map" }, { "type": "image", "data": "TUFQ" }] });
        let of = |value: Value| {
            let source =
                TemplateSource { value, result: Some(Arc::new(result.clone())), ..TemplateSource::default() };
            let source = Arc::new(source);
            move |template: Value| {
                fill(&template, &|_| NameLookup::Value(source.clone())).map(|filled| filled.value)
            }
        };
        let map = of(json!("a map"));
        assert_eq!(map(json!("{{m.content.1.data}}")), Ok(json!("TUFQ")));
        assert_eq!(map(json!("{{m.content[-1].data}}")), Ok(json!("TUFQ")));
        assert!(map(json!("{{m.content[7]}}")).unwrap_err().to_string().contains("an array of 2"));
        assert!(map(json!("{{m.nothing}}")).is_err());
        // A member of the value comes first.
        assert_eq!(of(json!({ "content": 7 }))(json!("{{m.content}}")), Ok(json!(7)));
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
        let source = TemplateSource {
            value: json!({"a": [1]}),
            text: Some("{ \"a\": [1] }".into()),
            ..TemplateSource::default()
        };
        let source = Arc::new(source);
        let template = json!({"x": ["{{r}}"], "y": "{{r.a}}", "z": "in {{r}}"});
        let filled = fill(&template, &|_| NameLookup::Value(source.clone())).unwrap();
        let inserted = |path: &[&str], text: &str| InsertedValue {
            path: path.iter().map(|step| step.to_string()).collect(),
            text: text.into(),
        };
        assert_eq!(filled.inserted, [inserted(&["x", "0"], "{ \"a\": [1] }"), inserted(&["y"], "[1]")]);
    }

    #[test]
    fn names_are_found() {
        let value = json!({
            "x": "{{a.b}} {{c}} {{literal:d}}",
            "y": ["{{ref:r-0123456789.z}}", "{{r-00000000aa.content[0].data}}", "{{ Ref : job-0123456789ab }}"],
        });
        assert_eq!(names(&value).into_iter().collect::<Vec<_>>(), ["a", "c"]);
        let kept = [("r-0123456789", false), ("r-00000000aa", true), ("job-0123456789ab", false)];
        let kept = kept.map(|(id, blocks)| (id.to_string(), blocks)).into();
        assert_eq!(references([&value]), Ok(TemplateUses { kept, has_literals: true, almost: None }));
    }
}
