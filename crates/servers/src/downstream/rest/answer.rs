//! Turns a service's answer into the result of a call: contents by media type, and the failures that HTTP
//! defines.

use std::time::{Duration, SystemTime};

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode, header};
use jiff::fmt::rfc2822::DateTimeParser;
use nonet_base::{clock::unix_ms, json::set_member, text::clip};
use nonet_rest::Operation;
use nonet_text::results::WRAPPER;
use nonet_wire::{
    Limits,
    http::{HttpFault, said},
    web,
};
use reqwest::Url;
use serde_json::{Map, Value, json};

use super::{
    RestServer, RestService,
    paging::AnswerPage,
    send::{RestReply, target},
};
use crate::downstream::{BESIDE, CallError, Remedy, link::RequestError, refusal::Refusal};

/// The longest time for which a service can refuse calls.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest JSON, in bytes, that is returned as structured content as well as text. Longer JSON becomes a
/// preview, or would use up a client's budget twice.
const STRUCTURED: usize = 20_000;
/// The member of structured content that wraps JSON other than objects.
const WRAPPED: &str = "result";
/// How many characters of a header are shown.
const SHOWN: usize = 500;
/// The remaining calls, as many services report them.
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Media types that are text, besides `text/*`, `*+json` and `*+xml`.
const TEXTS: [&str; 14] = [
    "application/ecmascript",
    "application/graphql",
    "application/javascript",
    "application/jsonl",
    "application/sql",
    "application/toml",
    "application/x-javascript",
    "application/x-ndjson",
    "application/x-www-form-urlencoded",
    "application/x-yaml",
    "application/xml",
    "application/yaml",
    "image/svg+xml",
    "message/rfc822",
];

/// One answer without its body.
pub(super) struct RestAnswer<'a> {
    pub server: &'a RestServer,
    pub described: &'a RestService,
    pub operation: &'a Operation,
    pub arguments: &'a Map<String, Value>,
    /// Whether credentials were sent.
    pub is_home: bool,
    /// Where it came from.
    pub url: Url,
    pub status: StatusCode,
    pub headers: HeaderMap,
}

/// The contents of a body.
#[derive(Default)]
struct Contents {
    block: Option<Value>,
    /// Its value, if it is JSON.
    json: Option<Value>,
    /// Its length, in bytes.
    bytes: usize,
}

impl RestAnswer<'_> {
    /// Reads the body, and makes the call's result from it.
    pub(super) async fn read(&self, reply: RestReply) -> Result<Value, RequestError> {
        let status = self.status;
        if status.is_success() {
            let contents = self.contents(reply).await?;
            return Ok(self.result(contents));
        }
        if let Some(to) = target(&reply, &self.url) {
            let text = format!(
                "HTTP {status}: the service redirects the request to {}, which was not followed: only GET \
                 and HEAD requests go to another host, and only a few times.",
                web::place(to.as_str())
            );
            return Ok(json!({ "content": [text_block(text)], "isError": true }));
        }
        if is_limited(status, &self.headers) {
            let wait = retry_after(&self.headers, nonet_base::clock::system_time());
            let error = self.said(reply).await;
            return Err(RequestError::Call(CallError::RateLimited { error, wait }));
        }
        // Other credentials help with a 401, or with a 403 that names a wider scope. Any other 403 is the
        // service's answer.
        if let Some(refusal) = reply.wants_sign_in().as_ref().and_then(Refusal::of) {
            return Err(RequestError::Call(self.not_allowed(&refusal, reply).await));
        }
        if status.is_server_error() {
            let wait = retry_after(&self.headers, nonet_base::clock::system_time());
            let (error, is_open) = (self.said(reply).await, !self.operation.method.is_idempotent());
            // These statuses mean that the service is absent or unhealthy.
            let is_answer = !matches!(status.as_u16(), 502..=504);
            return Err(RequestError::Call(CallError::Upstream { error, wait, is_open, is_answer }));
        }
        let Contents { block, .. } = self.contents(reply).await?;
        let ways = &self.described.service.sign_in;
        let hint = (status == StatusCode::FORBIDDEN && !ways.is_empty()).then(|| {
            let ways = clip(&ways.join(", or "), SHOWN);
            text_block(format!("If credentials are missing: the service's document names {ways}."))
        });
        let content: Vec<Value> =
            [Some(text_block(format!("HTTP {status}"))), block, hint].into_iter().flatten().collect();
        Ok(self.with_more(json!({ "content": content, "isError": true }), None))
    }

    /// Returns the service's text about a failure, as one line.
    async fn said(&self, reply: RestReply) -> String {
        let text = match reply.refused().await {
            HttpFault::Status { text, .. } => text,
            _ => said(self.status, &[]),
        };
        self.server.credentials.mask(&text.replace(char::is_control, " "))
    }

    /// Returns why these credentials do not allow the call. Other calls continue: much of a service may be
    /// public.
    async fn not_allowed(&self, refusal: &Refusal, reply: RestReply) -> CallError {
        let needed = self.described.sender.refused(refusal).await;
        let remedy = match self.is_home {
            true => needed.remedy,
            false => Remedy::OtherHost(
                web::place(self.operation.address().unwrap_or_default()).trim_end_matches('/').into(),
            ),
        };
        let body = reply.body(self.server.limits.answer.bytes).await.unwrap_or_default();
        let error = self.server.credentials.mask(&said(self.status, &body).replace(char::is_control, " "));
        let ways = &self.described.service.sign_in;
        if ways.is_empty() {
            return CallError::NotAllowed { error, remedy };
        }
        let error = format!("{error}. Its document names {}", clip(&ways.join(", or "), SHOWN));
        let remedy = if remedy == Remedy::Headers { Remedy::AsDocumented } else { remedy };
        CallError::NotAllowed { error, remedy }
    }

    /// Reads the body according to its media type.
    async fn contents(&self, reply: RestReply) -> Result<Contents, RequestError> {
        let limit = self.server.limits.answer.bytes;
        let unreadable = |why: String| RequestError::Call(CallError::Unreadable(why));
        let body = match reply.body(limit).await {
            Ok(body) => body,
            Err(HttpFault::TooLong(_)) => {
                return Err(unreadable(format!(
                    "it is longer than {limit} bytes; ask for less, or raise `result_bytes` in [limits]"
                )));
            }
            Err(HttpFault::Wrong(why)) => return Err(unreadable(why)),
            Err(fault) => {
                let error = self.server.credentials.mask(&clip(&fault.to_string(), 400));
                let is_open = !self.operation.method.is_idempotent();
                let lost = CallError::Upstream { error, wait: None, is_open, is_answer: false };
                return Err(RequestError::Call(lost));
            }
        };
        if body.is_empty() {
            return Ok(Contents::default());
        }
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = MediaType::of(kind.unwrap_or_default(), &body);
        if !kind.is_text() {
            let block = Some(self.binary(&kind.essence, &body));
            return Ok(Contents { block, ..Contents::default() });
        }
        let text = self.server.credentials.mask(&kind.decoded(&body));
        let json = kind.may_be_json().then(|| parsed(&text)).flatten();
        Ok(Contents { bytes: text.len(), block: Some(text_block(text)), json })
    }

    /// Returns the content for a body that is not text.
    fn binary(&self, kind: &str, body: &Bytes) -> Value {
        let data = BASE64_STANDARD.encode(body);
        match kind.split('/').next() {
            Some(media @ ("image" | "audio")) => json!({ "type": media, "data": data, "mimeType": kind }),
            _ => {
                let uri = web::place(self.url.as_str());
                json!({ "type": "resource", "resource": { "uri": uri, "mimeType": kind, "blob": data } })
            }
        }
    }

    /// Returns the result of a successful call.
    fn result(&self, contents: Contents) -> Value {
        let Contents { block, json, bytes } = contents;
        let block = block.unwrap_or_else(|| text_block(format!("HTTP {}", self.status)));
        let mut result = self.with_more(json!({ "content": [block] }), json.as_ref());
        let schema = self.operation.definition.get("outputSchema");
        match json.filter(|_| bytes <= STRUCTURED) {
            Some(Value::Object(value)) => result["structuredContent"] = Value::Object(value),
            // Any other output schema promises an object.
            Some(value) if schema.is_none() => {
                result["structuredContent"] = json!({ WRAPPED: value });
                result["_meta"][WRAPPER] = json!(WRAPPED);
            }
            _ => {}
        }
        result
    }

    /// Adds the wanted headers and the step to the next page, if any, in `_meta`; the gateway shows them
    /// beside the result.
    fn with_more(&self, mut result: Value, body: Option<&Value>) -> Value {
        let mut more = Map::new();
        let headers: Map<String, Value> = self
            .server
            .settings
            .headers_out
            .iter()
            .filter_map(|name| {
                let values = self.headers.get_all(name.as_str()).iter();
                let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
                let shown = self.server.credentials.mask(&clip(&values.join(", "), SHOWN));
                (!values.is_empty()).then(|| (name.clone(), json!(shown)))
            })
            .collect();
        if !headers.is_empty() {
            more.insert("headers".into(), json!(headers));
        }
        if self.status.is_success() {
            let page = AnswerPage {
                server: &self.server.name,
                operation: self.operation,
                base_url: self.server.settings.base_url.as_deref(),
                arguments: self.arguments,
                url: &self.url,
                credentials: &self.server.credentials,
            };
            more.extend(page.next(&self.headers, body));
        }
        if !more.is_empty() {
            set_member(&mut result, "_meta", json!({ BESIDE: more }));
        }
        result
    }
}

fn text_block(text: String) -> Value {
    json!({ "type": "text", "text": text })
}

/// Returns the value of a text that is JSON and not too large as a tree.
fn parsed(text: &str) -> Option<Value> {
    // An upper bound on the number of values, because texts contain commas and brackets too.
    let values = memchr::memchr3_iter(b',', b'[', b'{', text.as_bytes()).count();
    if values > Limits::default().answer.values {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// The type of a body.
#[derive(Debug)]
struct MediaType {
    /// In lower case, without parameters.
    essence: String,
    charset: Option<String>,
    /// Whether the type is a guess, because the answer names none.
    is_guess: bool,
}

impl MediaType {
    fn of(written: &str, body: &[u8]) -> Self {
        let mut parts = written.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
        let charset = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"').to_string())
        });
        match (essence.is_empty(), std::str::from_utf8(body).is_ok()) {
            (false, _) => Self { essence, charset, is_guess: false },
            (true, is_text) => {
                let essence = if is_text { "text/plain" } else { "application/octet-stream" };
                Self { essence: essence.into(), charset: None, is_guess: true }
            }
        }
    }

    fn is_json(&self) -> bool {
        matches!(self.essence.as_str(), "application/json" | "text/json") || self.essence.ends_with("+json")
    }

    fn may_be_json(&self) -> bool {
        self.is_json() || self.is_guess
    }

    fn is_text(&self) -> bool {
        self.is_json()
            || self.essence.starts_with("text/")
            || self.essence.ends_with("+xml")
            || TEXTS.contains(&self.essence.as_str())
    }

    /// Returns the text of a body, with unreadable characters replaced.
    fn decoded(&self, body: &[u8]) -> String {
        let encoding =
            self.charset.as_ref().and_then(|name| encoding_rs::Encoding::for_label(name.as_bytes()));
        encoding.unwrap_or(encoding_rs::UTF_8).decode(body).0.into_owned()
    }
}

/// Returns whether an answer means that there were too many calls: some services send a 403 for it.
fn is_limited(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_used_up = headers.get(REMAINING).is_some_and(|left| left.as_bytes() == b"0");
    status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::FORBIDDEN && (is_used_up || headers.contains_key(header::RETRY_AFTER))
}

/// Returns when to call again, if the answer says so: in seconds, as a date, or as the reset time of its
/// limit.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let now_ms = unix_ms(now);
    let until = |at_ms: u64| Duration::from_millis(at_ms.saturating_sub(now_ms));
    let wait = match text(header::RETRY_AFTER) {
        Some(text) => match text.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let date = DateTimeParser::new().parse_timestamp(text).ok()?;
                until(u64::try_from(date.as_millisecond()).ok()?)
            }
        },
        None => {
            headers.get(REMAINING).filter(|left| left.as_bytes() == b"0")?;
            let reset: u64 = text(RESET)?.parse().ok()?;
            // Either a Unix time or a number of seconds.
            if reset > 1_000_000_000 {
                until(reset.saturating_mul(1_000))
            } else {
                Duration::from_secs(reset)
            }
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_to_call_again_is_read_in_every_form() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let check = |headers: &[(&'static str, &'static str)], expected: Option<u64>| {
            let headers: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value")))
                .collect();
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{headers:?}");
        };
        check(&[], None);
        check(&[("retry-after", "120")], Some(120));
        check(&[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")], Some(30));
        check(&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")], Some(0));
        check(&[("retry-after", "99999999999")], Some(86_400));
        check(&[("retry-after", "soon")], None);
        check(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")], Some(60));
        check(&[("x-ratelimit-remaining", "7"), ("x-ratelimit-reset", "60")], None);
    }

    #[test]
    fn texts_are_told_from_binaries() {
        let check = |written: &str, body: &[u8], expected: Option<&str>| {
            let kind = MediaType::of(written, body);
            let text = kind.is_text().then(|| kind.decoded(body));
            assert_eq!(text.as_deref(), expected, "{written}");
        };
        check("text/html; charset=ISO-8859-1", b"caf\xe9", Some("café"));
        check("text/plain; charset=\"utf-8\"", "café".as_bytes(), Some("café"));
        check("text/plain; charset=klingon", b"x", Some("x"));
        check("application/problem+json", b"{}", Some("{}"));
        check("image/svg+xml", b"<svg/>", Some("<svg/>"));
        check("image/png", b"\x89PNG", None);
        check("application/pdf", b"%PDF", None);
        check("application/octet-stream", b"text", None);
        check("", b"text", Some("text"));
        check("", b"\xff\xfe", None);
    }
}
