//! What the headers of a request over HTTP have to say: where it comes from, what its client accepts, which
//! protocol version it speaks, and from 2026-07-28 on the names in its body (SEP-2243).

use std::net::IpAddr;

use axum::{body::Body, response::Response};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{
        ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
        ACCESS_CONTROL_REQUEST_METHOD, ALLOW, CONTENT_TYPE, HOST, ORIGIN, VARY,
    },
    uri::Authority,
};
use nonet_wire::{
    Message,
    mirrored::{at_path, each_mirrored, mirrored_text},
    subject_key,
};
use rmcp::{
    ErrorData,
    model::{ErrorCode, ProtocolVersion, RequestId},
};
use serde_json::{Map, Value};

use crate::request::{ClientRequest, RequestBody};

static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
static VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
static METHOD: HeaderName = HeaderName::from_static("mcp-method");
static NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The beginning of headers that repeat a param of a tool.
const PARAM: &str = "mcp-param-";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// Returns the session of a request.
pub fn session_id(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(&SESSION_ID).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

/// Returns whether a request names a session, however badly.
pub fn names_session(headers: &HeaderMap) -> bool {
    headers.contains_key(&SESSION_ID)
}

/// Names the session in a response.
pub fn set_session_id(headers: &mut HeaderMap, id: &str) {
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(SESSION_ID.clone(), id);
    }
}

/// Returns a refusal in words.
pub fn refused(status: StatusCode, why: impl Into<Body>) -> Response {
    let mut response = Response::new(why.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Returns a response without a body.
pub fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Returns a response with a JSON-RPC error.
pub fn failed(status: StatusCode, id: Option<&RequestId>, error: &ErrorData) -> Response {
    let id = id.and_then(|id| serde_json::to_string(id).ok()).unwrap_or_else(|| "null".into());
    let error = serde_json::to_vec(error).unwrap_or_default();
    in_json(status, Message::failure_of(&id, &error))
}

/// Returns a response with a body of JSON.
pub fn in_json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// Returns the refusal of a method, with the methods that there are.
pub fn method_not_allowed(allowed: &'static str) -> Response {
    let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// The hosts by which an address may be reached, and the sites whose pages may reach it. A page of another
/// site must not, neither through the browser nor through a name of its own (DNS rebinding).
pub struct AllowedSites {
    hosts: Vec<Place>,
    /// With their schemes.
    origins: Vec<(String, Place)>,
    /// Whether a page without a site may.
    allows_null: bool,
    /// The origins among them whose pages may read answers (CORS).
    readers: Vec<(String, Place)>,
}

/// A host, with its port or any.
struct Place {
    host: String,
    port: Option<u16>,
}

impl Place {
    fn of(text: &str) -> Self {
        match text.parse::<Authority>() {
            Ok(authority) => Self { host: plain(authority.host()).to_owned(), port: authority.port_u16() },
            Err(_) => Self { host: plain(text).to_owned(), port: None },
        }
    }

    fn is(&self, host: &str, port: Option<u16>) -> bool {
        self.host.eq_ignore_ascii_case(plain(host)) && self.port.is_none_or(|own| port == Some(own))
    }
}

/// Returns a host without the brackets of an IPv6 address.
fn plain(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

/// Returns the scheme, host and port of an origin. Origins leave out the default port of their scheme (RFC
/// 6454, section 6.2).
fn origin_parts(origin: &str) -> Option<(String, Authority, u16)> {
    let uri: Uri = origin.trim().parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let default = if scheme == "https" { 443 } else { 80 };
    let authority = uri.authority()?.clone();
    let port = authority.port_u16().unwrap_or(default);
    Some((scheme, authority, port))
}

impl AllowedSites {
    /// Reads hosts, with or without a port, and origins, which may end in `:*` or have no port for any port.
    pub fn new(hosts: &[String], origins: &[String]) -> Self {
        let origin = |origin: &String| {
            let (scheme, place) = origin.trim().split_once("://")?;
            Some((scheme.to_ascii_lowercase(), Place::of(place.strip_suffix(":*").unwrap_or(place))))
        };
        Self {
            hosts: hosts.iter().map(|host| Place::of(host.trim())).collect(),
            origins: origins.iter().filter_map(origin).collect(),
            allows_null: origins.iter().any(|origin| origin.trim().eq_ignore_ascii_case("null")),
            readers: Vec::new(),
        }
    }

    /// Lets pages of these origins read answers (<https://fetch.spec.whatwg.org/#http-cors-protocol>). Any page of
    /// this machine may send requests, but only those that the user named learn what is answered.
    pub fn with_readers(self, origins: &[String]) -> Self {
        Self { readers: Self::new(&[], origins).origins, ..self }
    }

    /// Returns the origin of a request whose page may read the answer.
    pub fn reader(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let (scheme, authority, port) = origin_parts(origin.to_str().ok()?)?;
        let is_own =
            |(own, place): &(String, Place)| *own == scheme && place.is(authority.host(), Some(port));
        self.readers.iter().any(is_own).then(|| origin.clone())
    }

    /// Returns the refusal of a request for another host, or from a page of another site.
    pub fn refusal(&self, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        let host = match headers.get(HOST) {
            Some(host) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
            // HTTP/2 has it here.
            None => uri.authority().cloned(),
        };
        let Some(host) = host else {
            return Some(refused(StatusCode::BAD_REQUEST, "Bad Request: missing or invalid Host header"));
        };
        if !self.has_host(&host) {
            tracing::warn!(%host, "a request for another host was refused; `allowed_hosts` of [gateway] adds hosts");
            return Some(refused(StatusCode::FORBIDDEN, "Forbidden: Host header is not allowed"));
        }
        let origin = headers.get(ORIGIN)?;
        let is_allowed = origin.to_str().is_ok_and(|origin| self.has_origin(origin));
        (!is_allowed).then(|| {
            tracing::warn!(
                ?origin,
                "a page of another site was refused; `allowed_origins` of [gateway] adds sites"
            );
            refused(StatusCode::FORBIDDEN, "Forbidden: Origin header is not allowed")
        })
    }

    /// Returns whether a request names one of the hosts, or `local`, the exact address that it arrived at, as
    /// an orchestrator's probes do: another site's page cannot know that.
    pub fn is_named(&self, headers: &HeaderMap, local: Option<IpAddr>) -> bool {
        let mut given = headers.get_all(HOST).iter();
        let only = given.next().filter(|_| given.next().is_none()).and_then(|host| host.to_str().ok());
        let Some(host) = only.and_then(|host| host.parse::<Authority>().ok()) else { return false };
        local.is_some_and(|local| plain(host.host()).parse() == Ok(local)) || self.has_host(&host)
    }

    fn has_host(&self, host: &Authority) -> bool {
        self.hosts.iter().any(|allowed| allowed.is(host.host(), host.port_u16()))
    }

    fn has_origin(&self, origin: &str) -> bool {
        if origin.trim().eq_ignore_ascii_case("null") {
            return self.allows_null;
        }
        let Some((scheme, authority, port)) = origin_parts(origin) else { return false };
        self.origins.iter().any(|(own, place)| *own == scheme && place.is(authority.host(), Some(port)))
    }
}

/// Returns the answer to the question of a browser whether a page may send a request; none if the request is another
/// one.
pub fn preflight(method: &Method, headers: &HeaderMap) -> Option<Response> {
    if *method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let own = response.headers_mut();
    own.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    own.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        own.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    Some(response)
}

/// Lets a page of this origin read an answer.
pub fn let_read(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(READABLE));
    headers.append(VARY, HeaderValue::from_static("origin"));
}

/// The headers of answers that clients read.
const READABLE: &str = "mcp-session-id, mcp-protocol-version, www-authenticate, retry-after";

/// Returns the refusal of a POST whose client does not accept both kinds of answers, or whose body is not
/// declared as JSON. A client that accepts anything accepts both.
pub fn unsuitable_post(headers: &HeaderMap) -> Option<Response> {
    let takes_all = headers.get(ACCEPT).is_none_or(|accept| accept == "*/*");
    let takes_both = takes_all || accepts(headers, JSON) && accepts(headers, EVENTS);
    if !takes_both {
        let why = "Not Acceptable: Client must accept both application/json and text/event-stream";
        return Some(refused(StatusCode::NOT_ACCEPTABLE, why));
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_json =
        kind.is_some_and(|kind| kind.split(';').next().unwrap_or(kind).trim().eq_ignore_ascii_case(JSON));
    (!is_json).then(|| {
        let why = "Unsupported Media Type: Content-Type must be application/json";
        refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, why)
    })
}

/// Returns the refusal of a GET whose client does not accept events.
pub fn unsuitable_get(headers: &HeaderMap) -> Option<Response> {
    (!accepts(headers, EVENTS))
        .then(|| refused(StatusCode::NOT_ACCEPTABLE, "Not Acceptable: Client must accept text/event-stream"))
}

/// Returns whether a media type is named, and not with a weight of zero (RFC 9110, section 12.4.2).
fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';');
        let named = parts.next().is_some_and(|name| name.trim().eq_ignore_ascii_case(kind));
        let is_zero = |part: &str| {
            let (name, weight) = part.split_once('=')?;
            let weight = weight.trim().parse::<f32>().ok()?;
            (name.trim().eq_ignore_ascii_case("q") && weight == 0.0).then_some(())
        };
        named && parts.all(|part| is_zero(part).is_none())
    })
}

/// Returns the protocol version in the headers, or the refusal of one that is not text or, unless the request
/// names its own, is unknown.
fn version(headers: &HeaderMap, has_own: bool) -> Result<Option<&str>, Box<Response>> {
    let Some(version) = headers.get(&VERSION) else { return Ok(None) };
    let Ok(version) = version.to_str() else {
        let why = "Bad Request: Invalid MCP-Protocol-Version header encoding";
        return Err(Box::new(refused(StatusCode::BAD_REQUEST, why)));
    };
    if !has_own && !ProtocolVersion::KNOWN_VERSIONS.iter().any(|known| known.as_str() == version) {
        let why = format!("Bad Request: Unsupported MCP-Protocol-Version: {version}");
        return Err(Box::new(refused(StatusCode::BAD_REQUEST, why)));
    }
    Ok(Some(version))
}

/// Returns whether a request is of the handshake's era, and so of a session. Refuses one whose headers and
/// body disagree.
pub fn is_of_session(headers: &HeaderMap, request: Option<&ClientRequest>) -> Result<bool, Box<Response>> {
    let bad = |error: ErrorData| {
        Box::new(failed(StatusCode::BAD_REQUEST, request.map(|request| &request.id), &error))
    };
    let own = request.and_then(|request| request.meta.protocol_version());
    let told = version(headers, own.is_some())?;
    let Some(request) = request else { return Ok(told.is_none_or(is_old)) };
    let method = request.body.method();
    let missing = || request.meta.missing_required_keys(&ProtocolVersion::V_2026_07_28);
    let proposed = request.body.proposed_version();
    if method == "initialize" && (proposed.is_some() || !missing().is_empty()) {
        return match (told, proposed) {
            (Some(told), Some(proposed)) if told != proposed => {
                let why = format!(
                    "Invalid Request: MCP-Protocol-Version header ({told}) does not match initialize params.protocolVersion ({proposed})"
                );
                Err(bad(ErrorData::invalid_request(why, None)))
            }
            // The handshake exists only in this era, whatever version it proposes.
            _ => Ok(true),
        };
    }
    match (&own, told) {
        (None, told) if method == "server/discover" || told.is_some_and(|told| !is_old(told)) => {
            let why = format!(
                "Invalid params: request _meta is missing or has malformed required fields: {}",
                missing().join(", ")
            );
            Err(bad(ErrorData::invalid_params(why, None)))
        }
        (None, _) => Ok(true),
        (Some(_), None) => {
            let why = "request _meta protocolVersion requires MCP-Protocol-Version header";
            Err(bad(ErrorData::header_mismatch(why, None)))
        }
        (Some(own), Some(told)) if own.as_str() != told => {
            let why = format!(
                "MCP-Protocol-Version header ({told}) does not match request _meta protocolVersion ({own})"
            );
            Err(bad(ErrorData::header_mismatch(why, None)))
        }
        (Some(own), Some(_)) => Ok(own.has_initialize() && !missing().is_empty()),
    }
}

/// Returns whether a version is of the handshake's era. Versions are dates.
fn is_old(version: &str) -> bool {
    version < ProtocolVersion::STANDARD_HEADERS.as_str()
}

/// Refuses a request whose headers do not repeat its method and its subject, or the params that its tool's
/// `schema` names, where its version wants that.
pub fn check_repeated(
    headers: &HeaderMap,
    request: &ClientRequest,
    schema: impl FnOnce(&str) -> Option<Map<String, Value>>,
) -> Result<(), Box<Response>> {
    if headers.get(&VERSION).and_then(|version| version.to_str().ok()).is_none_or(is_old) {
        return Ok(());
    }
    repeated(headers, request, schema).map_err(|why| {
        let error = ErrorData::new(ErrorCode::HEADER_MISMATCH, why, None);
        Box::new(failed(StatusCode::BAD_REQUEST, Some(&request.id), &error))
    })
}

fn repeated(
    headers: &HeaderMap,
    request: &ClientRequest,
    schema: impl FnOnce(&str) -> Option<Map<String, Value>>,
) -> Result<(), String> {
    let method = request.body.method();
    match only(headers, &METHOD)? {
        None if method == "initialize" => return Ok(()),
        None => return Err("missing required Mcp-Method header".into()),
        Some(told) if told != method => {
            return Err(format!("Mcp-Method header `{told}` does not match body method `{method}`"));
        }
        Some(_) => {}
    }
    let subject = match &request.body {
        RequestBody::Call(call, _) => Some(&*call.name),
        RequestBody::Other(params) => subject_key(method).and_then(|key| params.text(key)),
        RequestBody::Invalid(_) => None,
    };
    if let Some(subject) = subject {
        let told = only(headers, &NAME)?
            .ok_or_else(|| format!("missing required Mcp-Name header for `{method}`"))?;
        let told = decoded(told).ok_or("Mcp-Name header is not valid Base64")?;
        if told != subject {
            return Err(format!("Mcp-Name header `{told}` does not match body value `{subject}`"));
        }
    }
    let RequestBody::Call(call, _) = &request.body else { return Ok(()) };
    let Some(schema) = schema(&call.name) else { return Ok(()) };
    let arguments = call.arguments.as_ref();
    each_mirrored(&schema, &mut Vec::new(), &mut |path, _, header| match header.as_str() {
        None | Some("") => Ok(()),
        Some(header) => param(headers, arguments, path, header),
    })
}

fn param(
    headers: &HeaderMap,
    arguments: Option<&Map<String, Value>>,
    path: &[&str],
    header: &str,
) -> Result<(), String> {
    let given = arguments.and_then(|arguments| at_path(arguments, path)).and_then(mirrored_text);
    let (full, name) = (format!("Mcp-Param-{header}"), path.join("."));
    let key = HeaderName::try_from(format!("{PARAM}{}", header.to_ascii_lowercase()));
    let told = match key {
        Ok(key) => only(headers, &key)?.map(str::to_owned),
        Err(_) => None,
    };
    match (told, given) {
        (None, None) => Ok(()),
        (Some(_), None) => Err(format!("unexpected {full} header for absent or null `{name}`")),
        (None, Some(_)) => Err(format!("missing {full} header for `{name}`")),
        (Some(told), Some(given)) => {
            let told = decoded(&told).ok_or_else(|| format!("{full} header is not valid Base64"))?;
            match told == given {
                true => Ok(()),
                false => Err(format!("{full} header `{told}` does not match body value `{given}`")),
            }
        }
    }
}

/// Returns the value of a header that may occur once: others on the way could take another one of several.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(format!("duplicate {name} header"));
    }
    value.to_str().map(Some).map_err(|_| format!("{name} header contains invalid characters"))
}

/// Returns the text of a header's value, which may be encoded.
fn decoded(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|inner| inner.strip_suffix("?=")) {
        Some(inner) => String::from_utf8(BASE64_STANDARD.decode(inner).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

/// Returns the status of an error in the stateless era.
pub fn status_of(error: &ErrorData, is_malformed: bool) -> StatusCode {
    match error.code {
        ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
        | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
        | ErrorCode::HEADER_MISMATCH => StatusCode::BAD_REQUEST,
        ErrorCode::INVALID_PARAMS if is_malformed => StatusCode::BAD_REQUEST,
        ErrorCode::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().expect("a name"), value.parse::<HeaderValue>().expect("a value"))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn only_known_hosts_and_sites_come_in() {
        let hosts = ["localhost".to_string(), "[::1]".into(), "gw.example:8443".into()];
        let origins =
            ["http://localhost:*".to_string(), "https://app.example".into(), "https://x.example:443".into()];
        let sites = AllowedSites::new(&hosts, &origins);
        let check = |host: &str, origin: Option<&str>, expected: Option<u16>| {
            let mut given = vec![("host", host)];
            given.extend(origin.map(|origin| ("origin", origin)));
            let refusal = sites.refusal(&Uri::from_static("/mcp"), &headers(&given));
            assert_eq!(refusal.map(|refusal| refusal.status().as_u16()), expected, "{host} {origin:?}");
        };
        check("localhost:8931", None, None);
        check("LOCALHOST", Some("http://localhost:3000"), None);
        check("[::1]:8931", Some("https://app.example:7"), None);
        check("gw.example:8443", Some("https://x.example"), None);
        check("gw.example", None, Some(403));
        check("evil.example", None, Some(403));
        check("localhost", Some("https://evil.example"), Some(403));
        check("localhost", Some("https://localhost"), Some(403));
        check("localhost", Some("http://x.example"), Some(403));
        check("localhost", Some("null"), Some(403));
        check("a b", None, Some(400));
        let none = sites.refusal(&Uri::from_static("/mcp"), &HeaderMap::new());
        assert_eq!(none.map(|refusal| refusal.status().as_u16()), Some(400));
        let authority = sites.refusal(&Uri::from_static("http://localhost/mcp"), &HeaderMap::new());
        assert!(authority.is_none(), "HTTP/2 names the host in the address");
    }

    #[test]
    fn both_kinds_of_answers_have_to_be_accepted() {
        let check = |accept: &str, kind: &str, expected: Option<u16>| {
            let refusal = unsuitable_post(&headers(&[("accept", accept), ("content-type", kind)]));
            assert_eq!(refusal.map(|refusal| refusal.status().as_u16()), expected, "{accept} {kind}");
        };
        let both = "application/json, text/event-stream";
        check(both, "application/json; charset=utf-8", None);
        check("*/*", "application/json", None);
        check("text/event-stream;q=0.5, Application/JSON", "application/json", None);
        check("application/json", "application/json", Some(406));
        check("application/json, text/event-stream;q=0.0", "application/json", Some(406));
        check(both, "text/plain", Some(415));
    }

    /// Returns a request with these params.
    fn request(method: &str, params: Value) -> ClientRequest {
        let message = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let message = Message::of(message.to_string()).expect("a message");
        match crate::request::ClientMessage::of(&message) {
            Ok(crate::request::ClientMessage::Request(request)) => *request,
            _ => panic!("a request"),
        }
    }

    #[test]
    fn headers_and_metadata_say_the_era() {
        let own = |version: &str| {
            serde_json::json!({ "_meta": {
                "io.modelcontextprotocol/protocolVersion": version,
                "io.modelcontextprotocol/clientCapabilities": {},
            } })
        };
        let none = || serde_json::json!({});
        let check = |told: Option<&str>, method: &str, params: Value, expected: Result<bool, u16>| {
            let given: Vec<_> = told.iter().map(|told| ("mcp-protocol-version", *told)).collect();
            let found = is_of_session(&headers(&given), Some(&request(method, params)));
            assert_eq!(found.map_err(|refusal| refusal.status().as_u16()), expected, "{told:?} {method}");
        };
        check(None, "tools/list", none(), Ok(true));
        check(Some("2025-06-18"), "tools/list", none(), Ok(true));
        check(Some("1999-01-01"), "tools/list", none(), Err(400));
        check(Some("2026-07-28"), "tools/list", own("2026-07-28"), Ok(false));
        check(Some("2026-07-28"), "tools/list", none(), Err(400));
        check(None, "tools/list", own("2026-07-28"), Err(400));
        check(Some("2025-06-18"), "tools/list", own("2026-07-28"), Err(400));
        check(None, "server/discover", none(), Err(400));
        check(Some("2030-01-01"), "tools/list", own("2030-01-01"), Ok(false));
        check(None, "initialize", serde_json::json!({ "protocolVersion": "2026-07-28" }), Ok(true));
        check(
            Some("2025-06-18"),
            "initialize",
            serde_json::json!({ "protocolVersion": "2025-11-25" }),
            Err(400),
        );
    }

    #[test]
    fn headers_repeat_the_body() {
        let schema = serde_json::json!({ "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "deep": { "type": "object", "properties": { "on": { "type": "boolean", "x-mcp-header": "On" } } },
        } });
        let schema = schema.as_object().expect("an object");
        let check = |given: &[(&str, &str)], params: Value, expected: &str| {
            let request = request("tools/call", params);
            let mut given = given.to_vec();
            given.push(("mcp-method", "tools/call"));
            let found = repeated(&headers(&given), &request, |_| Some(schema.clone()));
            assert_eq!(found.err().unwrap_or_default(), expected, "{given:?}");
        };
        let call = |arguments: Value| serde_json::json!({ "name": "shop", "arguments": arguments });
        check(&[("mcp-name", "shop")], call(serde_json::json!({})), "");
        check(&[("mcp-name", "=?base64?c2hvcA==?=")], call(serde_json::json!({})), "");
        check(&[], call(serde_json::json!({})), "missing required Mcp-Name header for `tools/call`");
        check(
            &[("mcp-name", "bank")],
            call(serde_json::json!({})),
            "Mcp-Name header `bank` does not match body value `shop`",
        );
        check(
            &[("mcp-name", "shop"), ("mcp-name", "shop")],
            call(serde_json::json!({})),
            "duplicate mcp-name header",
        );
        let arguments = serde_json::json!({ "region": "eu", "deep": { "on": true } });
        check(
            &[("mcp-name", "shop")],
            call(arguments.clone()),
            "missing Mcp-Param-Region header for `region`",
        );
        let all = [("mcp-name", "shop"), ("mcp-param-region", "eu"), ("mcp-param-on", "true")];
        check(&all, call(arguments.clone()), "");
        check(
            &all,
            call(serde_json::json!({})),
            "unexpected Mcp-Param-Region header for absent or null `region`",
        );
        let other = [("mcp-name", "shop"), ("mcp-param-region", "us"), ("mcp-param-on", "true")];
        check(&other, call(arguments), "Mcp-Param-Region header `us` does not match body value `eu`");
    }
}
