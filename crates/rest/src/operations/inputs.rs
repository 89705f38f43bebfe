//! Reads the params and the body of an operation, and makes one input schema of them.

use http::HeaderValue;
use serde_json::{Map, Value, json};

use super::{MAX_DEPTH, MAX_PARTS, OperationDefinition, Reader, is_managed, sentence_end};
use crate::{
    document::ApiDocument,
    names,
    plan::{BodyPlan, Encoding, Field, Media, ParamPlace, ParamPlan, ParamStyle, Shape, ValueFormat},
    schema::{Converter, SchemaSide, Schemas, annotate, examples_of},
};

/// The maximum number of body members that become params.
const MAX_MEMBERS: usize = 300;

/// A param as the document defines it.
pub(super) struct ParamDefinition<'a> {
    pub name: &'a str,
    pub place: ParamPlace,
    pub raw: &'a Map<String, Value>,
    /// `None` for a param that only the path names.
    pub schema: Option<&'a Value>,
    pub writing: ValueFormat,
    pub required: bool,
}

/// A body as the document defines it.
pub(super) struct BodyDefinition<'a> {
    media: Media,
    media_type: &'a str,
    pub raw: &'a Map<String, Value>,
    content: &'a Map<String, Value>,
    pub schema: Option<&'a Value>,
    pub required: bool,
    pub members: Option<Members<'a>>,
}

/// The members of an object schema and of its parts.
#[derive(Default)]
pub(super) struct Members<'a> {
    properties: Vec<(&'a str, &'a Value)>,
    required: Vec<&'a str>,
    /// The schema's rule for other members.
    others: Option<&'a Value>,
    /// Whether a part declares that it has no members.
    is_empty: bool,
    /// The number of parts read so far: each may contain several.
    parts: usize,
}

/// What a call of an operation takes, and how it is sent.
pub(super) struct OperationInput {
    pub schema: Value,
    pub params: Vec<ParamPlan>,
    pub body: Option<BodyPlan>,
}

/// The params of a tool by their names in the input schema.
struct NamedParams<'p, 'a> {
    given: Vec<(String, &'p ParamDefinition<'a>)>,
    body: Option<&'p BodyDefinition<'a>>,
    /// The members of the body that are params.
    fields: Vec<(String, (&'a str, &'a Value))>,
    /// The param for the whole body.
    whole: Option<String>,
}

impl<'p, 'a> NamedParams<'p, 'a> {
    fn new(
        schemas: &Schemas<'a>,
        given: &'p [ParamDefinition<'a>],
        body: Option<&'p BodyDefinition<'a>>,
    ) -> Self {
        let members = body.and_then(|body| body.members.as_ref()).into_iter();
        let members = members.flat_map(|members| members.properties.iter().copied());
        let fields: Vec<_> = members.filter(|(_, raw)| !schemas.hides(raw, SchemaSide::Input)).collect();
        let whole = body.filter(|body| body.members.is_none());
        let wanted = given.iter().map(|given| (given.name, Some(given.place.name())));
        let wanted = wanted.chain(fields.iter().map(|(name, _)| (*name, Some("body"))));
        let wanted: Vec<_> = wanted.chain(whole.map(|_| ("body", None))).collect();
        let mut names = names::of_params(&wanted).into_iter();
        let given = given.iter().zip(names.by_ref()).map(|(given, name)| (name, given)).collect();
        let fields = fields.into_iter().zip(names.by_ref()).map(|(field, name)| (name, field)).collect();
        Self { given, body, fields, whole: names.next() }
    }

    fn required(&self) -> Vec<&str> {
        let given = self.given.iter().filter(|(_, given)| given.required);
        let mut required: Vec<&str> = given.map(|(name, _)| name.as_str()).collect();
        if let Some(body) = self.body.filter(|body| body.required) {
            let is_required =
                |field: &str| body.members.as_ref().is_some_and(|members| members.required.contains(&field));
            let fields = self.fields.iter().filter(|(_, (field, _))| is_required(field));
            required.extend(fields.map(|(name, _)| name.as_str()));
            required.extend(self.whole.as_deref());
        }
        required
    }

    /// Returns the schema for undeclared members of the body, if it may have any.
    fn others(&self) -> Option<&'a Value> {
        self.body?.members.as_ref()?.others.filter(|others| **others != Value::Bool(false))
    }

    fn schema(&self, converter: &mut Converter) -> Value {
        let mut properties = Map::new();
        for (name, given) in &self.given {
            properties.insert(name.clone(), param(converter, given, name));
        }
        if let Some(body) = self.body {
            let document = converter.schemas.document;
            for (name, field) in &self.fields {
                properties.insert(name.clone(), member(converter, document, body, *field, name));
            }
            if let Some(name) = &self.whole {
                properties.insert(name.clone(), whole_body(converter, body));
            }
        }
        let mut schema = json!({ "type": "object", "properties": properties });
        let required = self.required();
        if !required.is_empty() {
            annotate(&mut schema, "required", required);
        }
        if let Some(others) = self.others() {
            annotate(&mut schema, "additionalProperties", converter.schema(others, 1, false));
        }
        schema
    }

    fn params_plan(&self) -> Vec<ParamPlan> {
        let plan = self.given.iter().map(|(name, given)| ParamPlan {
            param: name.clone(),
            name: given.name.into(),
            place: given.place,
            writing: given.writing,
        });
        plan.collect()
    }

    fn body_plan(&self, document: &ApiDocument) -> Option<BodyPlan> {
        let body = self.body?;
        let fields = self.fields.iter().map(|(name, (field, raw))| Field {
            param: name.clone(),
            name: (*field).to_string(),
            encoding: encoding(document, body, field, raw),
        });
        let shape = match &self.whole {
            Some(name) => Shape::Whole(name.clone()),
            None => Shape::Members { fields: fields.collect(), open: self.others().is_some() },
        };
        Some(BodyPlan { media: body.media.clone(), shape, required: body.required })
    }
}

impl<'a> Reader<'a, '_> {
    /// Returns the params of an operation and of its path, except for the ones that carry keys.
    pub(super) fn params(
        &mut self,
        found: &OperationDefinition<'a>,
    ) -> Result<Vec<ParamDefinition<'a>>, String> {
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

    /// Returns the body of an operation in the format that suits models best.
    pub(super) fn body(&self, found: &OperationDefinition<'a>) -> Result<Option<BodyDefinition<'a>>, String> {
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

    /// Collects the members of an object schema. Returns `false` if its members depend on more than their
    /// names.
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

    /// Makes the input of a tool. `None` if its schema cannot be made small enough.
    pub(super) fn input(
        &mut self,
        given: &[ParamDefinition<'a>],
        body: Option<&BodyDefinition<'a>>,
    ) -> Option<OperationInput> {
        let limit = self.max_input;
        let named = NamedParams::new(&self.schemas, given, body);
        let part = self.schemas.converted(SchemaSide::Input, limit, |converter| named.schema(converter))?;
        Some(OperationInput {
            schema: Value::Object(self.schemas.whole(&part, SchemaSide::Input, limit)),
            params: named.params_plan(),
            body: named.body_plan(self.schemas.document),
        })
    }
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
fn say(schema: &mut Value, more: &str) {
    let text = match schema.get("description").and_then(Value::as_str) {
        Some(said) => format!("{said}{} {more}", sentence_end(said)),
        None => more.to_string(),
    };
    annotate(schema, "description", text);
}

/// Returns the schema of a param.
fn param(converter: &mut Converter, given: &ParamDefinition, name: &str) -> Value {
    let mut schema = match given.schema {
        Some(schema) => converter.schema(schema, 1, false),
        None if given.raw.contains_key("type") => {
            let legacy = ["type", "enum", "items", "format", "default", "minimum", "maximum", "pattern"];
            let schema = given.raw.iter().filter(|(key, _)| legacy.contains(&key.as_str()));
            let schema = schema.map(|(key, value)| (key.clone(), value.clone())).collect();
            converter.schema(&Value::Object(schema), 1, false)
        }
        None => json!({ "type": "string" }),
    };
    let is_param = given.raw.get("name").and_then(Value::as_str) == Some(given.name);
    if is_param {
        if let Some(text) = description_of(given.raw) {
            annotate(&mut schema, "description", converter.words(text));
        }
        if given.raw.get("deprecated") == Some(&Value::Bool(true)) {
            annotate(&mut schema, "deprecated", true);
        }
        let examples = examples_of(given.raw, None);
        if !examples.is_empty() {
            annotate(&mut schema, "examples", examples);
        }
    }
    if name != given.name {
        say(&mut schema, &sent_as(given.place.name(), given.name, name));
    }
    schema
}

fn description_of(raw: &Map<String, Value>) -> Option<&str> {
    raw.get("description")?.as_str().filter(|text| !text.trim().is_empty())
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
    (field, raw): (&str, &Value),
    name: &str,
) -> Value {
    let mut schema = if encoding(document, body, field, raw).is_file {
        let text = raw.get("description").and_then(Value::as_str).unwrap_or_default();
        let text = converter.words(text);
        match raw.get("type").is_some_and(|kind| kind == "array") {
            true if text.is_empty() => json!({ "type": "array", "items": file("") }),
            true => json!({ "type": "array", "items": file(""), "description": text }),
            false => file(&text),
        }
    } else {
        let mut schema = converter.schema(raw, 1, false);
        let examples = examples_of(body.content, Some(field));
        if schema.get("examples").is_none() && !examples.is_empty() {
            annotate(&mut schema, "examples", examples);
        }
        schema
    };
    if name != field {
        say(&mut schema, &sent_as("body", field, name));
    }
    schema
}

/// Returns the schema of a file.
fn file(text: &str) -> Value {
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
}

/// Returns the schema of a body that is a single param.
fn whole_body(converter: &mut Converter, body: &BodyDefinition) -> Value {
    let mut schema = match (&body.media, body.schema) {
        (Media::Text(_), _) => json!({ "type": "string" }),
        (Media::Binary(_), _) => json!({ "type": "string", "contentEncoding": "base64" }),
        (Media::Form | Media::Multipart, None) => json!({ "type": "object" }),
        (_, Some(schema)) => converter.schema(schema, 1, false),
        (Media::Json(_), None) => json!({}),
    };
    let media_type = nonet_base::text::clip(body.media_type, 80);
    if let Some(text) = description_of(body.raw) {
        annotate(&mut schema, "description", converter.words(text));
    }
    match body.media {
        Media::Text(_) => say(&mut schema, &format!("The body, `{media_type}`.")),
        Media::Binary(_) => say(&mut schema, &format!("The body, `{media_type}`, as base64.")),
        _ if schema.get("description").is_none() => annotate(&mut schema, "description", "The body."),
        _ => {}
    }
    let examples = examples_of(body.content, None);
    if !examples.is_empty() && matches!(body.media, Media::Json(_)) {
        annotate(&mut schema, "examples", examples);
    }
    schema
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
