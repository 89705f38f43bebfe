//! Builds the request of a call: each value in its place, encoded so that it stays there.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{
    RestRequest,
    plan::{
        BodyPlan, Encoding, Field, Media, ParamPlace, ParamPlan, ParamStyle, PathPiece, RequestPlan, Shape,
        ValueFormat,
    },
};

/// Everything except RFC 3986's unreserved characters.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Reserved characters are kept, except for those that would end a value or a path.
const RESERVED: &AsciiSet = &STRICT
    .remove(b':')
    .remove(b'/')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',')
    .remove(b';');
/// The longest address, in bytes: servers refuse longer ones, most of them much shorter ones.
const MAX_URL: usize = 64 << 10;
/// The maximum nesting of objects in a query.
const MAX_DEPTH: usize = 16;

fn encoded(text: &str, reserved: bool) -> String {
    utf8_percent_encode(text, if reserved { RESERVED } else { STRICT }).to_string()
}

/// Returns a value as text: a string unchanged, anything else as JSON.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Builds the request of a call.
///
/// # Errors
///
/// Which param cannot be sent, and why.
pub(super) fn make(
    plan: &RequestPlan,
    method: &http::Method,
    base_url: Option<&str>,
    params: &Map<String, Value>,
) -> Result<RestRequest, String> {
    let base = base_url.or(plan.base.as_deref()).ok_or_else(|| {
        "the document names no address of the service: set `base_url` of the server".to_string()
    })?;
    let base =
        Url::parse(base).ok().filter(|base| matches!(base.scheme(), "http" | "https") && base.has_host());
    let mut base =
        base.ok_or_else(|| "the address of the service is not an http or https one".to_string())?;
    known(plan, params)?;
    let mut query: Vec<String> =
        base.query().filter(|query| !query.is_empty()).map(str::to_string).into_iter().collect();
    base.set_query(None);
    base.set_fragment(None);
    let mut path = String::new();
    for piece in &plan.path {
        match piece {
            PathPiece::Text(text) => path.push_str(text),
            PathPiece::Param { at, in_query } => {
                path.push_str(&in_path(&plan.params[*at], *in_query, params)?)
            }
        }
    }
    if let Some((before, own)) = path.split_once('?') {
        query.extend((!own.is_empty()).then(|| own.to_string()));
        path = before.to_string();
    }
    // Several values may combine to dots, such as an empty list with the dots of its style.
    if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err("the params of the path would lead out of it".into());
    }
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, plan.accept.clone());
    let mut cookies = Vec::new();
    for sent in &plan.params {
        let Some(value) = params.get(&sent.param).filter(|value| !value.is_null()) else { continue };
        match sent.place {
            ParamPlace::Path => {}
            ParamPlace::Query => query.extend(pairs(&sent.name, value, sent.writing)),
            ParamPlace::Cookie => cookies.extend(pairs(&sent.name, value, sent.writing)),
            ParamPlace::Header => {
                let (name, value) = header_of(sent, value)?;
                headers.insert(name, value);
            }
        }
    }
    if !cookies.is_empty() {
        let cookies = HeaderValue::from_str(&cookies.join("; ")).expect("all of it is percent-encoded");
        headers.insert(header::COOKIE, cookies);
    }
    let mut url = base.as_str().trim_end_matches('/').to_string();
    if !path.starts_with('/') {
        url.push('/');
    }
    url.push_str(&path);
    if !query.is_empty() {
        let _ = write!(url, "?{}", query.join("&"));
    }
    if url.len() > MAX_URL {
        return Err(format!(
            "the address would have {} bytes; at most {MAX_URL} can be sent: shorten the params",
            url.len()
        ));
    }
    let url =
        Url::parse(&url).map_err(|error| format!("the address of the request is not valid: {error}"))?;
    let body = plan.body.as_ref().map(|body| body_of(plan, body, params)).transpose()?.flatten();
    Ok(RestRequest { method: method.clone(), url: url.into(), headers, body })
}

/// Rejects params without a place.
fn known(plan: &RequestPlan, params: &Map<String, Value>) -> Result<(), String> {
    let is_field = |name: &str| match plan.body.as_ref().map(|body| &body.shape) {
        None => false,
        Some(Shape::Whole(param)) => param == name,
        Some(Shape::Members { fields, open }) => *open || fields.iter().any(|field| field.param == name),
    };
    let unknown =
        params.keys().find(|name| plan.params.iter().all(|sent| sent.param != **name) && !is_field(name));
    match unknown {
        Some(name) => Err(format!("`{}` has no param `{}`", plan.called, nonet_base::text::clip(name, 100))),
        None => Ok(()),
    }
}

/// Writes a param of the path.
fn in_path(sent: &ParamPlan, in_query: bool, params: &Map<String, Value>) -> Result<String, String> {
    let param = &sent.param;
    let value = params.get(param).filter(|value| !value.is_null());
    let value = value.ok_or_else(|| format!("`{param}` is part of the path, and is missing"))?;
    if in_query {
        return Ok(encoded(&text(value), false));
    }
    let said = joined(&sent.name, value, sent.writing);
    let plain = flat(value);
    if plain.trim().is_empty() {
        return Err(format!("`{param}` is part of the path and cannot be empty"));
    }
    // Some servers decode `%2F` and then resolve dots.
    let mut segments = plain.split(['/', '\\']);
    if segments.any(|segment| matches!(segment, "." | "..")) || plain.contains(char::is_control) {
        return Err(format!(
            "`{param}` is part of the path, and {} would lead out of it",
            Value::from(nonet_base::text::clip(&plain, 100))
        ));
    }
    if sent.writing.reserved && plain.split('/').any(str::is_empty) {
        return Err(format!(
            "`{param}` is part of the path and cannot begin or end with a slash or have two in a row"
        ));
    }
    Ok(said)
}

/// Returns a value's texts, for checking.
fn flat(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join("/"),
        Value::Object(members) => members.values().map(flat).collect::<Vec<_>>().join("/"),
        other => text(other),
    }
}

/// Returns the parts of a value: one per item, member, or name and value of a member. `key` and `safe` encode
/// names and values.
fn parts(
    value: &Value,
    explode: bool,
    key: impl Fn(&str) -> String,
    safe: impl Fn(&str) -> String,
) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().map(|item| safe(&text(item))).collect(),
        Value::Object(members) if explode => {
            members.iter().map(|(name, value)| format!("{}={}", key(name), safe(&text(value)))).collect()
        }
        Value::Object(members) => {
            members.iter().flat_map(|(name, value)| [key(name), safe(&text(value))]).collect()
        }
        other => vec![safe(&text(other))],
    }
}

/// Returns the parts of a value, percent-encoded.
fn encoded_parts(value: &Value, writing: ValueFormat) -> Vec<String> {
    parts(value, writing.explode, |name| encoded(name, false), |text| encoded(text, writing.reserved))
}

/// Writes a value in a style without pairs (`simple`, `label` or `matrix`), or as JSON.
fn joined(name: &str, value: &Value, writing: ValueFormat) -> String {
    if writing.style == ParamStyle::Json {
        return encoded(&value.to_string(), writing.reserved);
    }
    let (name, parts) = (encoded(name, false), encoded_parts(value, writing));
    match (writing.style, writing.explode) {
        (ParamStyle::Label, true) => format!(".{}", parts.join(".")),
        (ParamStyle::Label, false) => format!(".{}", parts.join(",")),
        (ParamStyle::Matrix, true) if value.is_object() => {
            parts.iter().map(|part| format!(";{part}")).collect()
        }
        (ParamStyle::Matrix, true) => parts.iter().map(|part| format!(";{name}={part}")).collect(),
        (ParamStyle::Matrix, false) => format!(";{name}={}", parts.join(",")),
        _ => parts.join(","),
    }
}

/// Writes a value as pairs, for a query, a cookie or a form.
fn pairs(name: &str, value: &Value, writing: ValueFormat) -> Vec<String> {
    let key = encoded(name, false);
    if writing.style == ParamStyle::Json {
        return vec![format!("{key}={}", encoded(&value.to_string(), writing.reserved))];
    }
    if writing.style == ParamStyle::Deep && (value.is_array() || value.is_object()) {
        let mut out = Vec::new();
        deep(name, value, 0, &mut out);
        return out;
    }
    let parts = encoded_parts(value, writing);
    match value {
        Value::Object(_) if writing.explode => parts,
        Value::Array(_) if writing.explode => parts.iter().map(|part| format!("{key}={part}")).collect(),
        _ if parts.is_empty() => parts,
        _ => vec![format!("{key}={}", parts.join(separator(writing.style)))],
    }
}

fn separator(style: ParamStyle) -> &'static str {
    match style {
        ParamStyle::Space => "%20",
        ParamStyle::Pipe => "%7C",
        _ => ",",
    }
}

/// Writes nested values as in `filter[name][]=a`. The encoding of arrays is unspecified; services that use
/// brackets accept this one.
fn deep(name: &str, value: &Value, depth: usize, out: &mut Vec<String>) {
    match value {
        Value::Object(members) if depth < MAX_DEPTH => {
            for (key, value) in members {
                deep(&format!("{name}[{key}]"), value, depth + 1, out);
            }
        }
        Value::Array(items) if depth < MAX_DEPTH => {
            for (at, item) in items.iter().enumerate() {
                let is_plain = !item.is_object() && !item.is_array();
                let name = if is_plain { format!("{name}[]") } else { format!("{name}[{at}]") };
                deep(&name, item, depth + 1, out);
            }
        }
        other => out.push(format!("{}={}", encoded(name, false), encoded(&text(other), false))),
    }
}

fn header_of(sent: &ParamPlan, value: &Value) -> Result<(HeaderName, HeaderValue), String> {
    let said = match sent.writing.style {
        ParamStyle::Json => value.to_string(),
        _ => parts(value, sent.writing.explode, str::to_string, str::to_string).join(","),
    };
    let name = HeaderName::try_from(&sent.name)
        .map_err(|_| format!("`{}` cannot be the name of a header", sent.name))?;
    let value = HeaderValue::from_str(said.trim()).ok().filter(|_| said.is_ascii()).ok_or_else(|| {
        format!(
            "`{}` goes into a header, which accepts only visible ASCII characters on one line",
            sent.param
        )
    })?;
    Ok((name, value))
}

/// Returns the content type and the bytes of a body; `None` if none of its params is given and the body is
/// optional.
fn body_of(
    plan: &RequestPlan,
    body: &BodyPlan,
    params: &Map<String, Value>,
) -> Result<Option<(String, Vec<u8>)>, String> {
    match &body.shape {
        Shape::Whole(param) => match params.get(param) {
            None if body.required => Err(format!("`{param}` is missing")),
            None => Ok(None),
            Some(Value::Object(members)) if matches!(body.media, Media::Form | Media::Multipart) => {
                let members = members.iter().map(|(name, value)| (name.as_str(), value, &NO_ENCODING));
                encode(&body.media, members.collect()).map(Some)
            }
            Some(value) => whole(&body.media, param, value).map(Some),
        },
        Shape::Members { fields, open } => {
            let mut members: Vec<(&str, &Value, &Encoding)> = Vec::new();
            for Field { param, name, encoding } in fields {
                if let Some(value) = params.get(param) {
                    members.push((name, value, encoding));
                }
            }
            if *open {
                let own = |name: &str| {
                    fields.iter().any(|field| field.param == name || field.name == name)
                        || plan.params.iter().any(|sent| sent.param == name)
                };
                let others = params.iter().filter(|(name, _)| !own(name));
                members.extend(others.map(|(name, value)| (name.as_str(), value, &NO_ENCODING)));
            }
            if members.is_empty() && !body.required {
                return Ok(None);
            }
            encode(&body.media, members).map(Some)
        }
    }
}

static NO_ENCODING: Encoding = Encoding { writing: None, content_type: None, is_file: false };

fn whole(media: &Media, param: &str, value: &Value) -> Result<(String, Vec<u8>), String> {
    Ok(match media {
        Media::Json(kind) => (kind.clone(), value.to_string().into_bytes()),
        Media::Text(kind) => (kind.clone(), text(value).into_bytes()),
        Media::Binary(kind) => {
            let given = value.as_str().ok_or_else(|| format!("`{param}` must be base64 text"))?;
            (kind.clone(), decoded(given).ok_or_else(|| format!("`{param}` is not base64"))?)
        }
        Media::Form | Media::Multipart => return Err(format!("`{param}` must be an object")),
    })
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    // Some clients have a data URL ready.
    let text = match text.strip_prefix("data:") {
        Some(rest) => rest.split_once(";base64,")?.1,
        None => text,
    };
    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok()
}

fn encode(media: &Media, members: Vec<(&str, &Value, &Encoding)>) -> Result<(String, Vec<u8>), String> {
    match media {
        Media::Form => {
            let mut all = Vec::new();
            for (name, value, encoding) in members.into_iter().filter(|(_, value, _)| !value.is_null()) {
                let nested = match value {
                    Value::Object(_) => true,
                    Value::Array(items) => items.iter().any(|item| item.is_object() || item.is_array()),
                    _ => false,
                };
                let default = if nested {
                    ValueFormat { style: ParamStyle::Json, ..ValueFormat::FORM }
                } else {
                    ValueFormat::FORM
                };
                all.extend(pairs(name, value, encoding.writing.unwrap_or(default)));
            }
            Ok(("application/x-www-form-urlencoded".into(), all.join("&").into_bytes()))
        }
        Media::Multipart => multipart(members),
        Media::Json(kind) | Media::Text(kind) | Media::Binary(kind) => {
            let object: Map<String, Value> =
                members.into_iter().map(|(name, value, _)| (name.to_string(), value.clone())).collect();
            Ok((kind.clone(), Value::Object(object).to_string().into_bytes()))
        }
    }
}

/// A part of a multipart form.
struct FormPart {
    head: String,
    body: Vec<u8>,
}

fn multipart(members: Vec<(&str, &Value, &Encoding)>) -> Result<(String, Vec<u8>), String> {
    let mut parts = Vec::new();
    for (name, value, encoding) in members.into_iter().filter(|(_, value, _)| !value.is_null()) {
        let items: Vec<&Value> = match value {
            Value::Array(items) if encoding.content_type.as_deref() != Some("application/json") => {
                items.iter().collect()
            }
            one => vec![one],
        };
        for item in items {
            parts.push(if encoding.is_file {
                file(name, item, encoding)?
            } else {
                field(name, item, encoding)
            });
        }
    }
    // A boundary derived from the content does not occur in it.
    let mut digest = Sha256::new();
    for part in &parts {
        digest.update(&part.head);
        digest.update(&part.body);
    }
    let boundary = format!("nonet-{}", nonet_base::text::hex(&digest.finalize()[..16]));
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(format!("--{boundary}\r\n{}\r\n\r\n", part.head).as_bytes());
        body.extend_from_slice(&part.body);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    Ok((format!("multipart/form-data; boundary={boundary}"), body))
}

/// Returns a name in quotes, as browsers write it.
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

fn field(name: &str, value: &Value, encoding: &Encoding) -> FormPart {
    let mut head = format!("Content-Disposition: form-data; name=\"{}\"", quoted(name));
    let is_nested = value.is_object() || value.is_array();
    let kind = encoding.content_type.as_deref().or(is_nested.then_some("application/json"));
    if let Some(kind) = kind {
        let _ = write!(head, "\r\nContent-Type: {kind}");
    }
    let is_json = kind.is_some_and(|kind| kind.contains("json"));
    let body = if is_json { value.to_string() } else { text(value) };
    FormPart { head, body: body.into_bytes() }
}

/// Returns a file part, from its text or from an object with `text` or `base64`.
fn file(name: &str, value: &Value, encoding: &Encoding) -> Result<FormPart, String> {
    let member = |key: &str| value.get(key).and_then(Value::as_str);
    let (body, default) = match (value, member("text"), member("base64")) {
        (Value::String(text), ..) => (text.clone().into_bytes(), "text/plain"),
        (_, Some(text), _) => (text.as_bytes().to_vec(), "text/plain"),
        (_, None, Some(given)) => {
            let bytes = decoded(given).ok_or_else(|| format!("`{name}.base64` is not base64"))?;
            (bytes, "application/octet-stream")
        }
        _ => return Err(format!("`{name}` is a file: it needs `text`, or `base64` of its bytes")),
    };
    let kind = member("content_type").or(encoding.content_type.as_deref()).unwrap_or(default);
    if HeaderValue::from_str(kind).is_err() {
        return Err(format!("`{name}.content_type` must be a media type"));
    }
    let file_name = member("file_name").unwrap_or("file");
    let head = format!(
        "Content-Disposition: form-data; name=\"{}\"; filename=\"{}\"\r\nContent-Type: {kind}",
        quoted(name),
        quoted(file_name)
    );
    Ok(FormPart { head, body })
}
