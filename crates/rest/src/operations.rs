//! Turns a document's operations into tools.

mod inputs;
mod responses;

use std::{collections::BTreeMap, sync::Arc};

use http::Method;
use nonet_config::Globs;
use serde_json::{Map, Value, json};

use self::inputs::{OperationInput, ParamDefinition};
use super::{
    MAX_OPERATIONS, Operation, Service,
    document::ApiDocument,
    names::{self, OperationKey},
    plan::{self, ParamPlace, PathPiece, RequestPlan, ValueFormat},
    prose,
    schema::Schemas,
    servers::{self, Security},
};

/// The maximum number of a document's operations that are read, wanted or not.
const MAX_LISTED: usize = 100_000;
/// The maximum number of reasons kept for operations that are left out.
const MAX_REASONS: usize = 1_000;
/// How many names are shown if a pattern matches none.
const SHOWN_NAMES: usize = 3;
/// The maximum number of an operation's params outside its body.
const MAX_PARAMS: usize = 200;
/// The approximate maximum size of a tool's input and output schema, and of all tools together, in bytes.
const MAX_INPUT: usize = 32 << 10;
const MAX_INPUTS: usize = 24 << 20;
const MAX_OUTPUT: usize = 8 << 10;
const MAX_OUTPUTS: usize = 8 << 20;
/// The longest texts of a tool and a service, in characters.
const MAX_TITLE: usize = 120;
const MAX_DESCRIPTION: usize = 2_000;
const MAX_ABOUT: usize = 4_000;
const MAX_TAG: usize = 64;
const MAX_TAGS: usize = 10;
/// How deep a schema's parts are followed to its members, and the maximum number of parts.
const MAX_DEPTH: usize = 8;
const MAX_PARTS: usize = 200;

/// An operation as the document defines it.
struct OperationDefinition<'a> {
    method: Method,
    path: &'a str,
    item: &'a Map<String, Value>,
    operation: &'a Map<String, Value>,
}

impl<'a> OperationDefinition<'a> {
    fn called(&self) -> String {
        format!("{} {}", self.method, nonet_base::text::clip(self.path, 200))
    }

    /// Returns a text of the operation, or else of its path.
    fn text(&self, key: &str) -> &str {
        let of = |map: &'a Map<String, Value>| map.get(key)?.as_str().filter(|text| !text.trim().is_empty());
        of(self.operation).or_else(|| of(self.item)).unwrap_or_default()
    }
}

/// Builds a service from a document.
pub(super) fn service(
    document: &ApiDocument,
    came_from: Option<&str>,
    wanted: Option<&Globs>,
) -> Result<Service, String> {
    let mut left_out = Reasons::default();
    let found = all(document, &mut left_out)?;
    let called: Vec<OperationKey> = found
        .iter()
        .map(|found| OperationKey {
            method: found.method.as_str(),
            path: found.path,
            id: found.operation.get("operationId").and_then(Value::as_str),
        })
        .collect();
    let names = names::of_operations(&called);
    let unmatched = wanted.map_or_else(Vec::new, |wanted| unmatched(wanted, &names));
    let wanted: Vec<(String, &OperationDefinition)> = names
        .into_iter()
        .zip(&found)
        .filter(|(name, _)| wanted.is_none_or(|wanted| wanted.matches(name)))
        .collect();
    let base_url = servers::base(document.get("servers"), came_from);
    let count = wanted.len().clamp(1, MAX_OPERATIONS);
    let mut reader = Reader {
        schemas: Schemas::new(document),
        max_input: (MAX_INPUTS / count).min(MAX_INPUT),
        max_output: (MAX_OUTPUTS / count).min(MAX_OUTPUT),
        base: base_url.as_deref().map(Into::into),
        came_from,
        security: Security::read(document),
    };
    let beyond = wanted.len().saturating_sub(MAX_OPERATIONS);
    let mut operations = BTreeMap::new();
    for (name, found) in wanted.into_iter().take(MAX_OPERATIONS) {
        match reader.operation(&name, found) {
            Ok(operation) => {
                operations.insert(name, operation);
            }
            Err(why) => left_out.push(format!("{}: {why}", found.called())),
        }
    }
    let mut left_out = left_out.done();
    if beyond > 0 {
        left_out.push(format!(
            "{beyond} more operations: at most {MAX_OPERATIONS} become tools; name the ones that you need with `operations`"
        ));
    }
    // YAML reads `3.1` as a number.
    let version = document.get("openapi").map(|given| given.as_str().map_or(given.to_string(), String::from));
    Ok(Service {
        version: nonet_base::text::clip(&version.unwrap_or_default(), 20),
        about: about(document),
        base_url,
        sign_in: reader.security.ways,
        operations,
        left_out,
        unmatched,
    })
}

/// Returns the patterns that match no operation, each with a few existing names.
fn unmatched(wanted: &Globs, names: &[String]) -> Vec<String> {
    let matches = |pattern: &String| {
        Globs::new(vec![pattern.clone()]).is_ok_and(|glob| names.iter().any(|name| glob.matches(name)))
    };
    let few: Vec<String> = names.iter().take(SHOWN_NAMES).map(|name| format!("`{name}`")).collect();
    let there_are = match names.len() {
        0 => String::new(),
        all if all <= SHOWN_NAMES => format!("; there are {}", few.join(", ")),
        all => format!("; there are {all}, such as {}", few.join(", ")),
    };
    let patterns = wanted.patterns().iter().filter(|pattern| !matches(pattern));
    patterns.map(|pattern| format!("`{pattern}` matches no operation{there_are}")).collect()
}

/// The reasons why operations are left out; the last one counts the omitted reasons.
#[derive(Default)]
struct Reasons {
    told: Vec<String>,
    more: usize,
}

impl Reasons {
    fn push(&mut self, reason: String) {
        if self.told.len() < MAX_REASONS {
            self.told.push(reason);
        } else {
            self.more += 1;
        }
    }

    fn done(mut self) -> Vec<String> {
        if self.more > 0 {
            self.told.push(format!("{} more operations", self.more));
        }
        self.told
    }
}

fn about(document: &ApiDocument) -> String {
    let info = document.get("info");
    let text = |key: &str| info.and_then(|info| info.get(key)?.as_str()).unwrap_or_default();
    let title = prose::line(text("title"), MAX_TITLE);
    let description = prose::plain(text("description"), MAX_ABOUT);
    match (title.is_empty(), description.is_empty()) {
        (false, false) => format!("{title}: {description}"),
        _ => title + &description,
    }
}

/// Lists the operations in the order of the document.
fn all<'a>(
    document: &'a ApiDocument,
    left_out: &mut Reasons,
) -> Result<Vec<OperationDefinition<'a>>, String> {
    let Some(paths) = document.get("paths").and_then(Value::as_object) else {
        return Err("the document has no `paths`, so there is nothing to call".into());
    };
    let mut found = Vec::new();
    for (path, item) in paths {
        if path.starts_with("x-") {
            continue;
        }
        let item = match document.resolved(item) {
            Ok(item) => item,
            Err(why) => {
                left_out.push(format!("{path}: {why}"));
                continue;
            }
        };
        let Some(item) = item.as_object() else {
            left_out.push(format!("{path}: it is not an object"));
            continue;
        };
        for (key, operation) in item {
            let Some(method) = plan::method(key) else {
                let key = key.to_ascii_uppercase();
                if ["OPTIONS", "TRACE"].contains(&key.as_str()) {
                    let called = format!("{key} {}", nonet_base::text::clip(path, 200));
                    left_out.push(format!("{called}: it is for clients, not for models"));
                }
                continue;
            };
            match operation.as_object() {
                Some(operation) if found.len() < MAX_LISTED => {
                    found.push(OperationDefinition { method, path, item, operation })
                }
                Some(_) => left_out
                    .push(format!("{method} {path}: the document has more than {MAX_LISTED} operations")),
                None => left_out.push(format!("{method} {path}: it is not an object")),
            }
        }
    }
    if found.is_empty() && left_out.told.is_empty() {
        return Err("the document describes no operation, so there is nothing to call".into());
    }
    Ok(found)
}

/// Returns the annotations from which the catalogue derives a tool's risk.
pub(super) fn annotations(method: &Method) -> Value {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let idempotent = reads || matches!(*method, Method::PUT | Method::DELETE);
    let mut hints = Map::new();
    hints.insert("readOnlyHint".into(), reads.into());
    if !reads {
        hints.insert("destructiveHint".into(), (*method == Method::DELETE).into());
    }
    hints.insert("idempotentHint".into(), idempotent.into());
    hints.insert("openWorldHint".into(), true.into());
    Value::Object(hints)
}

/// Returns a description with the request appended.
pub(super) fn described(text: &str, called: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return called.into();
    }
    if text.contains("\n\n") {
        return format!("{text}\n\n{called}");
    }
    format!("{text}{} {called}", sentence_end(text))
}

/// Returns the full stop that a text lacks before another sentence.
fn sentence_end(text: &str) -> &'static str {
    if text.ends_with(['.', '!', '?', ':']) { "" } else { "." }
}

/// Returns whether a text begins with another text's words.
fn starts_alike(text: &str, beginning: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    plain(text).starts_with(&plain(beginning))
}

struct Reader<'a, 's> {
    schemas: Schemas<'a>,
    max_input: usize,
    max_output: usize,
    base: Option<Arc<str>>,
    came_from: Option<&'s str>,
    security: Security,
}

impl<'a> Reader<'a, '_> {
    fn operation(&mut self, name: &str, found: &OperationDefinition<'a>) -> Result<Operation, String> {
        let (mut given, path) = in_path_order(found, self.params(found)?)?;
        let beyond = limit_params(&mut given);
        let mut body = self.body(found)?;
        let input = self.input(&given, body.as_ref()).or_else(|| {
            // A single param for the whole body may have any size.
            if let Some(body) = &mut body {
                body.members = None;
            }
            self.input(&given, body.as_ref())
        });
        let OperationInput { schema, params, body } =
            input.ok_or_else(|| format!("its input schema has more than {} bytes", self.max_input))?;
        let responses = self.responses(found);
        let called = found.called();
        let title = prose::line(found.text("summary"), MAX_TITLE);
        let tags = tags(found.operation);
        let definition = [
            ("name", Some(json!(name))),
            ("title", Some(json!(title)).filter(|_| !title.is_empty())),
            ("description", Some(json!(described(&description(found, &title, beyond), &called)))),
            ("inputSchema", Some(schema)),
            ("outputSchema", responses.schema.and_then(|raw| self.output(raw))),
            ("annotations", Some(annotations(&found.method))),
            ("_meta", Some(json!({ "nonet/tags": tags })).filter(|_| !tags.is_empty())),
        ];
        let definition = definition.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?)));
        let base = match [found.operation, found.item].iter().find_map(|map| map.get("servers")) {
            Some(own @ Value::Array(all)) if !all.is_empty() => {
                servers::base(Some(own), self.came_from).map(Into::into)
            }
            _ => self.base.clone(),
        };
        let plan = RequestPlan { called, path, params, body, accept: responses.accept, base };
        let definition = Arc::new(Value::Object(definition.collect()));
        Ok(Operation { definition, method: found.method.clone(), plan })
    }
}

/// Orders the params: those of the path in its order, then all others. Also returns the pieces of the path.
fn in_path_order<'a>(
    found: &OperationDefinition<'a>,
    mut given: Vec<ParamDefinition<'a>>,
) -> Result<(Vec<ParamDefinition<'a>>, Vec<PathPiece>), String> {
    let mut ordered: Vec<ParamDefinition<'a>> = Vec::new();
    let pieces = plan::pieces(found.path, |name, reserved| {
        if let Some(at) = ordered.iter().position(|own| own.name == name) {
            return at;
        }
        let position = |is_it: &dyn Fn(&str) -> bool| {
            given.iter().position(|given| given.place == ParamPlace::Path && is_it(given.name))
        };
        let at = position(&|own| own == name).or_else(|| position(&|own| own.eq_ignore_ascii_case(name)));
        let mut own = match at {
            Some(at) => given.remove(at),
            None => ParamDefinition {
                name,
                place: ParamPlace::Path,
                raw: found.operation,
                schema: None,
                writing: ValueFormat::SIMPLE,
                required: true,
            },
        };
        own.writing.reserved |= reserved;
        own.required = true;
        ordered.push(own);
        ordered.len() - 1
    })?;
    ordered.extend(given.into_iter().filter(|given| given.place != ParamPlace::Path));
    Ok((ordered, pieces))
}

/// Removes optional params beyond the maximum. Returns how many there are beyond it.
fn limit_params(given: &mut Vec<ParamDefinition>) -> usize {
    let beyond = given.len().saturating_sub(MAX_PARAMS);
    let mut spare = MAX_PARAMS.saturating_sub(given.iter().filter(|given| given.required).count());
    given.retain(|given| {
        let kept = given.required || spare > 0;
        spare -= usize::from(kept && !given.required);
        kept
    });
    beyond
}

/// Returns the description of an operation. Clients show only the description, and many descriptions begin
/// with a remark, so it begins with the title. `beyond` is the number of params that are left out.
fn description(found: &OperationDefinition<'_>, title: &str, beyond: usize) -> String {
    let mut description = prose::plain(found.text("description"), MAX_DESCRIPTION);
    if !starts_alike(&description, title) {
        description = format!("{title}{} {description}", sentence_end(title));
    }
    let is_deprecated = found.operation.get("deprecated") == Some(&Value::Bool(true));
    if is_deprecated && !description.to_lowercase().starts_with("deprecated") {
        description = format!("Deprecated. {description}");
    }
    if beyond > 0 {
        description = format!("{description} ({beyond} more optional params cannot be used.)");
    }
    description
}

fn tags(operation: &Map<String, Value>) -> Vec<String> {
    let all = operation.get("tags").and_then(Value::as_array).into_iter().flatten();
    let mut tags: Vec<String> = Vec::new();
    for tag in all.filter_map(Value::as_str) {
        let tag = prose::line(tag, MAX_TAG);
        if !tag.is_empty() && !tags.contains(&tag) && tags.len() < MAX_TAGS {
            tags.push(tag);
        }
    }
    tags
}

/// Returns whether the connection or the configuration sets this header.
pub(super) fn is_managed(name: &str) -> bool {
    const MANAGED: [&str; 12] = [
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "keep-alive",
        "proxy-authorization",
        "transfer-encoding",
        "upgrade",
    ];
    MANAGED.contains(&name.to_ascii_lowercase().as_str())
}
