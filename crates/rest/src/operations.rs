//! Turns a document's operations into tools.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderValue, Method};
use nonet_config::Globs;
use serde_json::{Map, Value, json};

use super::{
    MAX_OPERATIONS, Operation, Service,
    document::ApiDocument,
    names::{self, OperationKey},
    plan::{
        self, BodyPlan, Encoding, Field, Media, ParamPlace, ParamPlan, ParamStyle, RequestPlan, Shape,
        ValueFormat,
    },
    prose,
    schema::{Converter, SchemaNode, SchemaPart, SchemaSide, Schemas, examples_of},
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
/// The maximum number of body members that become params.
const MAX_MEMBERS: usize = 300;
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

/// The methods of tools. `OPTIONS` and `TRACE` are for the clients' own use.
const METHODS: [(&str, Method); 6] = [
    ("get", Method::GET),
    ("head", Method::HEAD),
    ("post", Method::POST),
    ("put", Method::PUT),
    ("patch", Method::PATCH),
    ("delete", Method::DELETE),
];

/// An operation as the document defines it.
struct OperationDefinition<'a> {
    method: Method,
    path: &'a str,
    item: &'a Map<String, Value>,
    operation: &'a Map<String, Value>,
}

impl OperationDefinition<'_> {
    fn called(&self) -> String {
        format!("{} {}", self.method, nonet_base::text::clip(self.path, 200))
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
        let items = match document.resolved(item).map(|target| [Some(target), Some(item)]) {
            Ok(items) => items.map(|item| item.and_then(Value::as_object)),
            Err(why) => {
                left_out.push(format!("{path}: {why}"));
                continue;
            }
        };
        let Some(item) = items[0] else {
            left_out.push(format!("{path}: it is not an object"));
            continue;
        };
        for (key, operation) in item {
            let key = key.to_ascii_lowercase();
            let method = METHODS.iter().find(|(name, _)| *name == key).map(|(_, method)| method.clone());
            let Some(method) = method else {
                if ["options", "trace"].contains(&key.as_str()) {
                    let called =
                        format!("{} {}", key.to_ascii_uppercase(), nonet_base::text::clip(path, 200));
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
    let end = if text.ends_with(['.', '!', '?', ':']) { "" } else { "." };
    format!("{text}{end} {called}")
}

/// Returns whether a text begins with another text's words.
fn starts_alike(text: &str, beginning: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    plain(text).starts_with(&plain(beginning))
}

/// A param as the document defines it.
struct ParamDefinition<'a> {
    name: &'a str,
    place: ParamPlace,
    raw: &'a Map<String, Value>,
    /// `None` for a param that only the path names.
    schema: Option<&'a Value>,
    writing: ValueFormat,
    required: bool,
}

/// A body as the document defines it.
struct BodyDefinition<'a> {
    media: Media,
    media_type: &'a str,
    raw: &'a Map<String, Value>,
    content: &'a Map<String, Value>,
    schema: Option<&'a Value>,
    required: bool,
    members: Option<Members<'a>>,
}

/// The members of an object schema and of its parts.
#[derive(Default)]
struct Members<'a> {
    properties: Vec<(&'a str, &'a Value)>,
    required: Vec<&'a str>,
    /// The schema's rule for other members.
    others: Option<&'a Value>,
    /// Whether a part declares that it has no members.
    is_empty: bool,
    /// The number of parts read so far: each may contain several.
    parts: usize,
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
        let mut given = self.params(found)?;
        let mut paths: Vec<(String, bool)> = Vec::new();
        let mut pieces = plan::pieces(found.path, |name, reserved| {
            paths.push((name.to_string(), reserved));
            paths.len() - 1
        })?;
        // The path's params come in the order of the path, before all others.
        let mut ordered: Vec<ParamDefinition<'a>> = Vec::new();
        let mut places = Vec::new();
        for (name, reserved) in &paths {
            if let Some(at) = ordered.iter().position(|own| own.name == name) {
                places.push(at);
                continue;
            }
            let is_it = |given: &ParamDefinition, exact: bool| {
                given.place == ParamPlace::Path
                    && if exact { given.name == name } else { given.name.eq_ignore_ascii_case(name) }
            };
            let at = given.iter().position(|given| is_it(given, true));
            let at = at.or_else(|| given.iter().position(|given| is_it(given, false)));
            let mut own = match at {
                Some(at) => given.remove(at),
                None => ParamDefinition {
                    name: slice_of(found.path, name),
                    place: ParamPlace::Path,
                    raw: found.operation,
                    schema: None,
                    writing: ValueFormat::SIMPLE,
                    required: true,
                },
            };
            own.writing.reserved |= reserved;
            own.required = true;
            places.push(ordered.len());
            ordered.push(own);
        }
        for piece in &mut pieces {
            if let plan::PathPiece::Param { at, .. } = piece {
                *at = places[*at];
            }
        }
        ordered.extend(given.into_iter().filter(|given| given.place != ParamPlace::Path));
        let beyond = ordered.len().saturating_sub(MAX_PARAMS);
        if beyond > 0 {
            let mut spare = MAX_PARAMS.saturating_sub(ordered.iter().filter(|given| given.required).count());
            ordered.retain(|given| {
                let kept = given.required || spare > 0;
                spare -= usize::from(kept && !given.required);
                kept
            });
        }
        let mut body = self.body(found)?;
        let called = found.called();
        let (definition_input, params, body) = match self.input(&ordered, body.as_ref()) {
            Some(input) => input,
            None => {
                // A single param for the whole body may have any size.
                if let Some(body) = &mut body {
                    body.members = None;
                }
                self.input(&ordered, body.as_ref())
                    .ok_or_else(|| format!("its input schema has more than {} bytes", self.max_input))?
            }
        };
        let responses = self.responses(found);
        let text = |key: &str| {
            let of =
                |map: &'a Map<String, Value>| map.get(key)?.as_str().filter(|text| !text.trim().is_empty());
            of(found.operation).or_else(|| of(found.item)).unwrap_or_default()
        };
        let title = prose::line(text("summary"), MAX_TITLE);
        let mut description = prose::plain(text("description"), MAX_DESCRIPTION);
        // Clients show only the description, and many descriptions begin with a remark.
        if !starts_alike(&description, &title) {
            let end = if title.ends_with(['.', '!', '?', ':']) { "" } else { "." };
            description = format!("{title}{end} {description}");
        }
        if found.operation.get("deprecated") == Some(&Value::Bool(true))
            && !description.to_lowercase().starts_with("deprecated")
        {
            description = format!("Deprecated. {description}");
        }
        let mut definition = Map::new();
        definition.insert("name".into(), name.into());
        if beyond > 0 {
            description = format!("{description} ({beyond} more optional params cannot be used.)");
        }
        if !title.is_empty() {
            definition.insert("title".into(), title.into());
        }
        definition.insert("description".into(), described(&description, &called).into());
        definition.insert("inputSchema".into(), definition_input);
        if let Some(output) = responses.schema.and_then(|raw| self.output(raw)) {
            definition.insert("outputSchema".into(), output);
        }
        definition.insert("annotations".into(), annotations(&found.method));
        let tags = tags(found.operation);
        if !tags.is_empty() {
            definition.insert("_meta".into(), json!({ "nonet/tags": tags }));
        }
        let base = match [found.operation, found.item].iter().find_map(|map| map.get("servers")) {
            Some(Value::Array(own)) if !own.is_empty() => {
                let own = Value::Array(own.clone());
                servers::base(Some(&own), self.came_from).map(Into::into)
            }
            _ => self.base.clone(),
        };
        let plan = RequestPlan { called, path: pieces, params, body, accept: responses.accept, base };
        Ok(Operation { definition: Arc::new(Value::Object(definition)), method: found.method.clone(), plan })
    }

    /// Returns the params of an operation and of its path, except for the ones that carry keys.
    fn params(&mut self, found: &OperationDefinition<'a>) -> Result<Vec<ParamDefinition<'a>>, String> {
        let document = self.schemas.document;
        let mut all: Vec<ParamDefinition<'a>> = Vec::new();
        for list in [found.item, found.operation] {
            for raw in list.get("parameters").and_then(Value::as_array).into_iter().flatten() {
                let raw =
                    document.resolved(raw).map_err(|why| format!("a parameter cannot be read: {why}"))?;
                let Some(raw) = raw.as_object() else { continue };
                let text = |key: &str| raw.get(key).and_then(Value::as_str).map(str::trim);
                let Some(name) = text("name").filter(|name| !name.is_empty()) else { continue };
                let place = text("in").unwrap_or_default().to_ascii_lowercase();
                let Some(kind) = ParamPlace::new(&place) else {
                    let shown = nonet_base::text::clip(name, 60);
                    return Err(format!(
                        "its parameter `{shown}` is in `{place}`, which OpenAPI 3 does not have"
                    ));
                };
                if self.security.is_key(&place, name) || kind == ParamPlace::Header && is_managed(name) {
                    continue;
                }
                let required = raw.get("required") == Some(&Value::Bool(true));
                if kind == ParamPlace::Header && http::HeaderName::try_from(name).is_err() {
                    if required {
                        return Err("one of its headers has a name that cannot be sent".into());
                    }
                    continue;
                }
                let given = given(name, kind, raw, required);
                match all.iter_mut().find(|own| own.name == name && own.place == kind) {
                    Some(own) => *own = given,
                    None => all.push(given),
                }
            }
        }
        Ok(all)
    }

    fn body(&self, found: &OperationDefinition<'a>) -> Result<Option<BodyDefinition<'a>>, String> {
        let document = self.schemas.document;
        let Some(raw) = found.operation.get("requestBody") else { return Ok(None) };
        let raw = document.resolved(raw).map_err(|why| format!("its body cannot be read: {why}"))?;
        let Some(raw) = raw.as_object() else { return Ok(None) };
        let contents = raw.get("content").and_then(Value::as_object).into_iter().flatten();
        let best = contents
            .map(|(name, content)| (Media::new(name), name, content))
            .min_by_key(|((rank, _), ..)| *rank);
        let Some(((_, media), media_type, content)) = best else { return Ok(None) };
        static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        let content = document.resolved(content).ok().and_then(Value::as_object).unwrap_or(&NONE);
        let schema = content.get("schema");
        let required = raw.get("required").and_then(Value::as_bool);
        let mut members = None;
        if let Some(schema) = schema
            && matches!(media, Media::Json(_) | Media::Form | Media::Multipart)
        {
            let mut all = Members::default();
            let lifts = self.lift(schema, 0, &mut all);
            // Generators describe a missing body as an object without members.
            if lifts && all.is_empty && all.properties.is_empty() && required != Some(true) {
                return Ok(None);
            }
            let usable = all.properties.iter().all(|(name, _)| !name.is_empty());
            if lifts && usable && (1..=MAX_MEMBERS).contains(&all.properties.len()) {
                members = Some(all);
            }
        }
        // Documents often fail to declare a body required although its members are.
        let needs = members.as_ref().is_some_and(|members| !members.required.is_empty());
        Ok(Some(BodyDefinition {
            media,
            media_type,
            raw,
            content,
            schema,
            required: required.unwrap_or(needs),
            members,
        }))
    }

    /// Collects the members of an object schema. Returns `false` if its members depend on more than their names.
    fn lift(&self, raw: &'a Value, depth: usize, members: &mut Members<'a>) -> bool {
        members.parts += 1;
        let Some(map) = raw.as_object().filter(|_| depth < MAX_DEPTH && members.parts <= MAX_PARTS) else {
            return false;
        };
        let has = |key: &str| map.get(key).is_some_and(|value| !value.is_null());
        if has("if") || has("patternProperties") || has("$dynamicRef") {
            return false;
        }
        let is_object = |kind: &Value| match kind {
            Value::String(kind) => kind == "object",
            Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
            _ => false,
        };
        if map.get("type").is_some_and(|kind| !is_object(kind)) {
            return false;
        }
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            let target = self.schemas.document.target(reference);
            if !target.is_ok_and(|target| self.lift(target, depth + 1, members)) {
                return false;
            }
            if self.schemas.document.is_3_0 {
                return true;
            }
        }
        for part in map.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            if !self.lift(part, depth + 1, members) {
                return false;
            }
        }
        // Alternatives that only say which members go together are left to the service to check.
        let only_requires = |part: &Value| {
            part.as_object().is_some_and(|part| {
                part.keys().all(|key| ["required", "title", "description", "type"].contains(&&**key))
            })
        };
        for key in ["anyOf", "oneOf"] {
            let alternatives = map.get(key).and_then(Value::as_array).into_iter().flatten();
            if !alternatives.into_iter().all(only_requires) {
                return false;
            }
        }
        for (name, property) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            match members.properties.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = property,
                None => members.properties.push((name, property)),
            }
            if members.properties.len() > MAX_MEMBERS {
                return false;
            }
        }
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        members.required.extend(required.filter_map(Value::as_str));
        members.is_empty |=
            map.get("properties").is_some_and(|all| all.as_object().is_some_and(Map::is_empty));
        members.others = members.others.or(map.get("additionalProperties"));
        true
    }

    /// Returns the input schema, and the places of its params. `None` if the schema cannot be made small enough.
    fn input(
        &mut self,
        given: &[ParamDefinition<'a>],
        body: Option<&BodyDefinition<'a>>,
    ) -> Option<(Value, Vec<ParamPlan>, Option<BodyPlan>)> {
        let limit = self.max_input;
        let fields: Vec<(&str, &Value)> = body
            .and_then(|body| body.members.as_ref())
            .map(|members| {
                let hides = |raw: &Value| {
                    let says = |raw: &Value| raw.get("readOnly") == Some(&Value::Bool(true));
                    says(raw) || self.schemas.document.resolved(raw).is_ok_and(says)
                };
                members.properties.iter().filter(|(_, raw)| !hides(raw)).copied().collect()
            })
            .unwrap_or_default();
        let mut wanted: Vec<(&str, Option<&str>)> =
            given.iter().map(|given| (given.name, Some(given.place.name()))).collect();
        wanted.extend(fields.iter().map(|(name, _)| (*name, Some("body"))));
        let whole = body.filter(|body| body.members.is_none());
        wanted.extend(whole.map(|_| ("body", None)));
        let names = names::of_params(&wanted);
        let (of_given, of_body) = names.split_at(given.len());

        let mut required: Vec<&str> = Vec::new();
        required.extend(
            given.iter().zip(of_given).filter(|(given, _)| given.required).map(|(_, name)| name.as_str()),
        );
        if let Some(body) = body.filter(|body| body.required) {
            match &body.members {
                Some(members) => {
                    let is_required = |field: &&str| members.required.contains(field);
                    let needed = fields.iter().zip(of_body).filter(|((field, _), _)| is_required(field));
                    required.extend(needed.map(|(_, name)| name.as_str()));
                }
                None => required.push(&of_body[0]),
            }
        }
        let others = body
            .and_then(|body| body.members.as_ref()?.others)
            .filter(|others| **others != Value::Bool(false));
        let document = self.schemas.document;
        let part = self.schemas.converted(SchemaSide::Input, limit, |converter| {
            let mut properties = Vec::new();
            for (given, name) in given.iter().zip(of_given) {
                properties.push((name.clone(), param(converter, given, name)));
            }
            for ((field, raw), name) in fields.iter().zip(of_body) {
                let body = body.expect("it has members");
                properties.push((name.clone(), member(converter, document, body, field, raw, name)));
            }
            if let Some(body) = whole {
                properties.push((of_body[0].clone(), whole_body(converter, body)));
            }
            let mut root = vec![
                ("type".to_string(), SchemaNode::text("object")),
                ("properties".to_string(), SchemaNode::Object(properties)),
            ];
            if !required.is_empty() {
                root.push(("required".into(), SchemaNode::Plain(json!(required))));
            }
            if let Some(others) = others {
                root.push(("additionalProperties".into(), converter.schema(others, 1, false)));
            }
            SchemaNode::Object(root)
        })?;
        let schema = Value::Object(self.schemas.whole(&part, SchemaSide::Input, limit));
        let sent = given.iter().zip(of_given).map(|(given, name)| ParamPlan {
            param: name.clone(),
            name: given.name.into(),
            place: given.place,
            writing: given.writing,
        });
        let shape = |body: &BodyDefinition| match &body.members {
            None => Shape::Whole(of_body[0].clone()),
            Some(_) => Shape::Members {
                fields: fields
                    .iter()
                    .zip(of_body)
                    .map(|((field, raw), name)| Field {
                        param: name.clone(),
                        name: (*field).to_string(),
                        encoding: encoding(document, body, field, raw),
                    })
                    .collect(),
                open: others.is_some(),
            },
        };
        let body = body.map(|body| BodyPlan {
            media: body.media.clone(),
            shape: shape(body),
            required: body.required,
        });
        Some((schema, sent.collect(), body))
    }

    fn responses(&self, found: &OperationDefinition<'a>) -> Responses<'a> {
        let document = self.schemas.document;
        let mut accepted: Vec<&str> = Vec::new();
        let mut schemas: Vec<Option<&'a Value>> = Vec::new();
        let all = found.operation.get("responses").and_then(Value::as_object).into_iter().flatten();
        for (_, response) in all.filter(|(code, _)| code.starts_with('2')) {
            let content =
                document.resolved(response).ok().and_then(|response| response.get("content")?.as_object());
            let types = content.into_iter().flatten();
            let json = types.clone().find(|(name, _)| matches!(Media::new(name), (0 | 1, _)));
            schemas.push(json.and_then(|(_, content)| content.get("schema")));
            for (name, _) in types {
                let name = name.trim();
                if HeaderValue::from_str(name).is_ok()
                    && name.is_ascii()
                    && name.contains('/')
                    && !accepted.contains(&name)
                {
                    accepted.push(name);
                }
            }
        }
        // The output schema has to cover every successful response.
        let schema = match schemas[..] {
            [Some(first), ref others @ ..] if others.iter().all(|other| *other == Some(first)) => Some(first),
            _ => None,
        };
        Responses { accept: accept(&accepted), schema: schema.filter(|raw| self.is_object(raw, 0, &mut 0)) }
    }

    /// Returns whether only objects satisfy a schema, as far as `parts` of it show.
    fn is_object(&self, raw: &Value, depth: usize, parts: &mut usize) -> bool {
        *parts += 1;
        let Some(map) = raw.as_object().filter(|_| depth < MAX_DEPTH && *parts <= MAX_PARTS) else {
            return false;
        };
        if map.get("nullable") == Some(&Value::Bool(true)) {
            return false;
        }
        if let Some(kind) = map.get("type") {
            return kind == "object"
                || kind.as_array().is_some_and(|all| all.len() == 1 && all[0] == "object");
        }
        let list = |key: &str| map.get(key).and_then(Value::as_array).filter(|all| !all.is_empty());
        let target =
            map.get("$ref").and_then(Value::as_str).and_then(|to| self.schemas.document.target(to).ok());
        target.is_some_and(|target| self.is_object(target, depth + 1, parts))
            || map.contains_key("properties")
            || list("allOf").is_some_and(|all| all.iter().any(|part| self.is_object(part, depth + 1, parts)))
            || ["anyOf", "oneOf"].iter().any(|key| {
                list(key).is_some_and(|all| all.iter().all(|part| self.is_object(part, depth + 1, parts)))
            })
    }

    fn output(&mut self, raw: &'a Value) -> Option<Value> {
        let limit = self.max_output;
        let part: SchemaPart =
            self.schemas.converted(SchemaSide::Output, limit, |converter| converter.schema(raw, 0, true))?;
        let schema = self.schemas.whole(&part, SchemaSide::Output, limit);
        if schema.get("type").is_some_and(|kind| kind == "object") {
            return Some(Value::Object(schema));
        }
        let mut object = Map::from_iter([("type".to_string(), json!("object"))]);
        object.extend(schema.into_iter().filter(|(key, _)| key != "type"));
        Some(Value::Object(object))
    }
}

/// The successful responses of an operation.
struct Responses<'a> {
    accept: HeaderValue,
    schema: Option<&'a Value>,
}

/// Returns the `Accept` header: JSON first, then the document's other types, then anything.
fn accept(types: &[&str]) -> HeaderValue {
    let is_json = |name: &&&str| matches!(Media::new(name), (0 | 1, _)) && !name.contains('*');
    let json = types.iter().find(is_json).copied().unwrap_or("application/json");
    let mut accept = json.to_string();
    let others = types.iter().filter(|name| **name != json && **name != "*/*");
    for other in others.take(5) {
        accept.push_str(&format!(", {other};q=0.8"));
    }
    accept.push_str(", */*;q=0.5");
    HeaderValue::from_str(&accept).unwrap_or(HeaderValue::from_static("application/json, */*;q=0.5"))
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

/// Returns the slice of `text` that equals `name`, which was found in it.
fn slice_of<'a>(text: &'a str, name: &str) -> &'a str {
    text.find(name).map_or(text, |at| &text[at..at + name.len()])
}

fn given<'a>(
    name: &'a str,
    place: ParamPlace,
    raw: &'a Map<String, Value>,
    required: bool,
) -> ParamDefinition<'a> {
    let content = raw.get("content").and_then(Value::as_object).and_then(|all| all.values().next());
    // Some documents of version 3 still have the type beside the name.
    let schema = raw.get("schema").or_else(|| content.and_then(|content| content.get("schema")));
    let mut writing = writing(raw, ValueFormat::of(place));
    if content.is_some() && raw.get("schema").is_none() {
        writing.style = ParamStyle::Json;
    }
    ParamDefinition { name, place, raw, schema, writing, required }
}

fn writing(raw: &Map<String, Value>, default: ValueFormat) -> ValueFormat {
    let style = match raw.get("style").and_then(Value::as_str).unwrap_or_default() {
        "form" => ParamStyle::Form,
        "spaceDelimited" => ParamStyle::Space,
        "pipeDelimited" => ParamStyle::Pipe,
        "deepObject" => ParamStyle::Deep,
        "simple" => ParamStyle::Simple,
        "label" => ParamStyle::Label,
        "matrix" => ParamStyle::Matrix,
        _ => default.style,
    };
    let explode = raw
        .get("explode")
        .and_then(Value::as_bool)
        .unwrap_or(matches!(style, ParamStyle::Form | ParamStyle::Deep));
    ValueFormat { style, explode, reserved: raw.get("allowReserved") == Some(&Value::Bool(true)) }
}

/// Appends to a description, or creates one.
fn say(node: &mut SchemaNode, more: &str) {
    let text = match node.get("description") {
        Some(SchemaNode::Plain(Value::String(said))) => {
            let end = if said.ends_with(['.', '!', '?', ':']) { "" } else { "." };
            format!("{said}{end} {more}")
        }
        _ => more.to_string(),
    };
    node.set("description", SchemaNode::text(text));
}

/// Returns the schema of a param.
fn param(converter: &mut Converter, given: &ParamDefinition, name: &str) -> SchemaNode {
    let mut node = match given.schema {
        Some(schema) => converter.schema(schema, 1, false),
        None if given.raw.contains_key("type") => {
            let legacy = ["type", "enum", "items", "format", "default", "minimum", "maximum", "pattern"];
            let schema: Map<String, Value> = given
                .raw
                .iter()
                .filter(|(key, _)| legacy.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            converter.schema(&Value::Object(schema), 1, false)
        }
        None => SchemaNode::Object(vec![("type".into(), SchemaNode::text("string"))]),
    };
    let is_param = given.raw.get("name").and_then(Value::as_str) == Some(given.name);
    if is_param {
        if let Some(text) =
            given.raw.get("description").and_then(Value::as_str).filter(|text| !text.trim().is_empty())
        {
            node.set("description", SchemaNode::text(converter.words(text)));
        }
        if given.raw.get("deprecated") == Some(&Value::Bool(true)) {
            node.set("deprecated", SchemaNode::Plain(Value::Bool(true)));
        }
        let examples = examples_of(given.raw, None);
        if !examples.is_empty() {
            node.set("examples", SchemaNode::Plain(Value::Array(examples)));
        }
    }
    if name != given.name {
        say(&mut node, &sent_as(given.place.name(), given.name, name));
    }
    node
}

/// Returns a note on a param that has a different name in the request.
fn sent_as(place: &str, name: &str, param: &str) -> String {
    if param.strip_prefix(place).and_then(|rest| rest.strip_prefix('_')) == Some(name) {
        format!("In the {place}.")
    } else {
        format!("Sent as `{}` in the {place}.", nonet_base::text::clip(name, 100))
    }
}

/// Returns the schema of a member of a body.
fn member(
    converter: &mut Converter,
    document: &ApiDocument,
    body: &BodyDefinition,
    field: &str,
    raw: &Value,
    name: &str,
) -> SchemaNode {
    let encoding = encoding(document, body, field, raw);
    let mut node = if encoding.is_file {
        let text = raw.get("description").and_then(Value::as_str).unwrap_or_default();
        let text = converter.words(text);
        let is_list = raw.get("type").is_some_and(|kind| kind == "array");
        let file = |text: &str| {
            let hint = "A file: its text, or an object with `text` or `base64`.";
            json!({
                "type": ["object", "string"],
                "description": format!("{text} {hint}").trim(),
                "properties": {
                    "file_name": { "type": "string" },
                    "content_type": { "type": "string" },
                    "text": { "type": "string" },
                    "base64": { "type": "string", "contentEncoding": "base64" }
                }
            })
        };
        if is_list {
            let items = ("items".to_string(), SchemaNode::Plain(file("")));
            let mut list = SchemaNode::Object(vec![("type".into(), SchemaNode::text("array")), items]);
            if !text.is_empty() {
                list.set("description", SchemaNode::text(text));
            }
            list
        } else {
            let Value::Object(members) = file(&text) else { return SchemaNode::any() };
            SchemaNode::Object(
                members.into_iter().map(|(key, value)| (key, SchemaNode::Plain(value))).collect(),
            )
        }
    } else {
        let mut node = converter.schema(raw, 1, false);
        let examples = examples_of(body.content, Some(field));
        if node.get("examples").is_none() && !examples.is_empty() {
            node.set("examples", SchemaNode::Plain(Value::Array(examples)));
        }
        node
    };
    if name != field {
        say(&mut node, &sent_as("body", field, name));
    }
    node
}

/// Returns the schema of a body that is a single param.
fn whole_body(converter: &mut Converter, body: &BodyDefinition) -> SchemaNode {
    let mut node = match (&body.media, body.schema) {
        (Media::Text(_), _) => SchemaNode::Object(vec![("type".into(), SchemaNode::text("string"))]),
        (Media::Binary(_), _) => SchemaNode::Object(vec![
            ("type".into(), SchemaNode::text("string")),
            ("contentEncoding".into(), SchemaNode::text("base64")),
        ]),
        (Media::Form | Media::Multipart, None) => {
            SchemaNode::Object(vec![("type".into(), SchemaNode::text("object"))])
        }
        (_, Some(schema)) => converter.schema(schema, 1, false),
        (Media::Json(_), None) => SchemaNode::any(),
    };
    let media_type = nonet_base::text::clip(body.media_type, 80);
    let text = body.raw.get("description").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    if let Some(text) = text {
        node.set("description", SchemaNode::text(converter.words(text)));
    }
    match body.media {
        Media::Text(_) => say(&mut node, &format!("The body, `{media_type}`.")),
        Media::Binary(_) => say(&mut node, &format!("The body, `{media_type}`, as base64.")),
        _ if node.get("description").is_none() => node.set("description", SchemaNode::text("The body.")),
        _ => {}
    }
    let examples = examples_of(body.content, None);
    if !examples.is_empty() && matches!(body.media, Media::Json(_)) {
        node.set("examples", SchemaNode::Plain(Value::Array(examples)));
    }
    node
}

/// Returns how a form member is encoded.
fn encoding(document: &ApiDocument, body: &BodyDefinition, field: &str, raw: &Value) -> Encoding {
    if !matches!(body.media, Media::Form | Media::Multipart) {
        return Encoding::default();
    }
    let said = body.content.get("encoding").and_then(|all| all.get(field)?.as_object());
    let content_type = said
        .and_then(|said| said.get("contentType")?.as_str())
        .map(str::trim)
        .filter(|kind| !kind.contains(['*', ',']) && HeaderValue::from_str(kind).is_ok())
        .map(str::to_string);
    let styled = said.filter(|said| ["style", "explode"].iter().any(|key| said.contains_key(*key)));
    let is_file = body.media == Media::Multipart && {
        let schema = document.resolved(raw).unwrap_or(raw);
        let item = schema.get("items").and_then(|items| document.resolved(items).ok()).unwrap_or(schema);
        let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
        let media = content_type.as_deref().or(said.and_then(|said| said.get("contentType")?.as_str()));
        let is_data =
            |kind: &str| !kind.is_empty() && !kind.contains("json") && !kind.starts_with("text/plain");
        text("format") == "binary"
            || text("type") == "file"
            // In some documents only the name says so.
            || field == "file" && text("type") == "string"
            || item.get("contentEncoding").is_none() && is_data(text("contentMediaType"))
            || text("type") != "object" && media.is_some_and(is_data)
    };
    Encoding { writing: styled.map(|said| writing(said, ValueFormat::FORM)), content_type, is_file }
}
