//! Chat completions in the format of OpenAI's API: a conversation goes to an endpoint, and the model's next
//! message comes back.
//!
//! An endpoint may answer with one JSON object or with events, whichever was requested. This room knows HTTP
//! and JSON, but nothing of servers, sessions or the effects of calls. A key goes only to its endpoint: no
//! error and no text from a model contains it.

use std::{error::Error, time::Duration};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use memchr::memmem;
use nonet_base::text::clip;
use nonet_config::Secret;
use nonet_wire::{
    EventData, EventReader,
    http::{Address, HttpFault, HttpReply, SignedClient},
    web,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::AsyncRead,
    time::{sleep, timeout},
};

mod gather;
pub mod in_text;

use gather::CompletionBuilder;

/// The longest answer that is accepted, in bytes.
const MAX_ANSWER: usize = 8 << 20;
/// How much of a refusal is read, in bytes, and for how long.
const MAX_REFUSAL: usize = 64 << 10;
const REFUSAL_LIMIT: Duration = Duration::from_secs(5);
/// How much of an unusable answer is shown, in characters.
const SHOWN: usize = 300;
/// How many times a request is sent again.
const RETRIES: usize = 3;
/// The waits before a request is sent again: the first, the longest, and the longest that an endpoint may ask
/// for.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Keys of at least this length are masked; shorter ones are words that local endpoints ignore.
const MASKED: usize = 6;

/// A conversation, up to the message that the model is to write.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'a> {
    /// The system prompt; may be empty.
    pub system: &'a str,
    /// The messages so far, oldest first.
    pub messages: &'a [ChatMessage],
    /// The tools that the model may call; may be empty.
    pub tools: &'a [ChatTool],
    /// The limit on the answer's tokens.
    pub max_tokens: Option<u32>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatMessage {
    /// Text that the model is to answer, such as the input of an app.
    User(String),
    /// An earlier message from the model.
    Model(Completion),
    /// The outcome of a call.
    Tool {
        /// The call's id.
        id: String,
        /// The name of the tool.
        name: String,
        /// The result or the error, as the model reads it.
        text: String,
        /// Whether the call failed. Sent to a client that samples; an endpoint gets only the text.
        failed: bool,
    },
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTool {
    /// The name under which the model calls the tool.
    pub name: String,
    /// What the tool does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Value,
}

/// A message from the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// The text for the user; may be empty if there are calls.
    pub text: String,
    /// The calls that the model wants to make, in order; if empty, the model has finished.
    pub calls: Vec<ChatCall>,
    /// What cut it off, if anything did.
    pub cut_by: Option<&'static str>,
    /// The model's reasoning, which some endpoints want back with the results of its calls.
    pub reasoning: Option<String>,
}

/// A call that the model wants to make.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatCall {
    /// The id that links the result to the call: the endpoint's, or `call_` with a number if it gives none.
    pub id: String,
    /// The name of a tool as the model wrote it; may not exist.
    pub name: String,
    /// The arguments as the model wrote them; may not be JSON.
    pub arguments: String,
    /// Data that the endpoint expects back with the call, such as a signature.
    pub extra: Option<Value>,
}

impl ChatCall {
    /// Parses the arguments as JSON. A call may have none.
    pub fn read(&self) -> Result<Value, serde_json::Error> {
        match self.arguments.trim() {
            "" => Ok(json!({})),
            text => serde_json::from_str(text),
        }
    }
}

/// Why a model did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The endpoint refuses the key.
    #[error("{0}")]
    Refused(String),
    /// The endpoint answered with another status that is not a success.
    #[error("{text}")]
    Status {
        /// The status of the answer.
        status: StatusCode,
        /// The status with the endpoint's own error message, for people.
        text: String,
        /// The wait that the endpoint asks for, if it asks for one.
        retry_after: Option<Duration>,
    },
    /// The request or its answer was interrupted.
    #[error("{0}")]
    Broken(String),
    /// The answer is too long.
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    /// The answer is an error, or not a chat completion.
    #[error("{0}")]
    Unusable(String),
}

impl ChatError {
    /// Returns whether the same request may succeed shortly.
    fn is_passing(&self) -> bool {
        match self {
            Self::Broken(_) => true,
            Self::Status { status, retry_after, .. } => {
                let is_soon = retry_after.is_none_or(|wait| wait <= MAX_RETRY_AFTER);
                is_soon && (*status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error())
            }
            _ => false,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl From<HttpFault> for ChatError {
    fn from(fault: HttpFault) -> Self {
        match fault {
            HttpFault::TooLong(limit) => Self::TooLong(limit),
            HttpFault::Broken(error) => {
                let mut at: &dyn Error = &*error;
                while let Some(source) = at.source() {
                    at = source;
                }
                Self::Broken(at.to_string())
            }
            other => Self::Broken(other.to_string()),
        }
    }
}

/// A model at an address.
pub struct ChatEndpoint {
    http: SignedClient,
    address: Address,
    model: String,
    key: Option<Secret>,
    /// The form of requests that the endpoint accepts, as far as it is known.
    form: Mutex<Form>,
}

/// How a request differs from the usual form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Form {
    /// The newer name for the token limit.
    renamed: bool,
    /// An answer in one piece.
    whole: bool,
    /// Tools in the system text, and calls in the model's text.
    in_text: bool,
}

impl Form {
    /// Returns the form for an endpoint that has refused this one, if the refusal says what is wrong with it.
    fn after(self, refusal: &ChatError, chat: Chat<'_>) -> Option<Self> {
        let ChatError::Status { status, text, .. } = refusal else { return None };
        let text = text.to_lowercase();
        let lacks = |what: &str| {
            let is_lack =
                ["support", "enable", "requires", "unrecognized", "unknown", "not allowed", "not permitted"]
                    .iter()
                    .any(|word| text.contains(word));
            matches!(status.as_u16(), 400 | 404 | 422 | 500 | 501) && text.contains(what) && is_lack
        };
        // OpenAI's newer models reject the parameter name that all other endpoints know.
        let wants_name = *status == StatusCode::BAD_REQUEST && text.contains("max_completion_tokens");
        if wants_name && chat.max_tokens.is_some() && !self.renamed {
            Some(Self { renamed: true, ..self })
        } else if lacks("stream") && !self.whole {
            Some(Self { whole: true, ..self })
        } else if lacks("tool") && !self.in_text && !chat.tools.is_empty() {
            Some(Self { in_text: true, ..self })
        } else {
            None
        }
    }
}

impl ChatEndpoint {
    /// Prepares requests to `base_url`, the address up to `/chat/completions`. Sends nothing yet.
    pub fn new(base_url: &str, model: &str, key: Option<Secret>) -> Result<Self, ChatError> {
        let mut url = Address::parse(base_url)?.url().clone();
        if !url.path().trim_end_matches('/').ends_with("/chat/completions")
            && let Ok(mut path) = url.path_segments_mut()
        {
            path.pop_if_empty().extend(["chat", "completions"]);
        }
        let form = Mutex::default();
        Ok(Self { http: SignedClient::new(None), address: url.into(), model: model.into(), key, form })
    }

    /// Returns the address in a form that may be shown.
    pub fn place(&self) -> String {
        web::place(self.address.url().as_str())
    }

    /// Asks the model for its next message. Repeats the request while the endpoint is busy, or in the form
    /// that the endpoint accepts.
    pub async fn complete(&self, chat: Chat<'_>) -> Result<Completion, ChatError> {
        let mut waits = ExponentialBuilder::default()
            .with_min_delay(BACKOFF.0)
            .with_max_delay(BACKOFF.1)
            .with_max_times(RETRIES)
            .with_jitter()
            .build();
        let known = *self.form.lock();
        let mut form = known;
        loop {
            let error = match self.send(chat, form).await {
                Ok(completion) => {
                    // A refusal may be about this conversation, so only a form that has worked is kept.
                    if form != known {
                        *self.form.lock() = form;
                    }
                    return Ok(self.masked(with_calls(completion, chat, form)));
                }
                Err(error) => error,
            };
            if let Some(other) = form.after(&error, chat) {
                tracing::debug!(
                    endpoint = self.place(),
                    ?other,
                    "{error}; the request is sent in another form"
                );
                form = other;
                continue;
            }
            let Some(wait) = error.is_passing().then(|| waits.next()).flatten() else { return Err(error) };
            let wait = error.retry_after().unwrap_or(wait);
            tracing::debug!(endpoint = self.place(), "{error}; the request is sent again in {wait:?}");
            sleep(wait).await;
        }
    }

    /// Returns what the endpoint turned out to lack.
    pub fn lacks(&self) -> Option<&'static str> {
        let form = *self.form.lock();
        match (form.in_text, form.whole) {
            (true, true) => Some(
                "The model's endpoint supports neither tools nor streaming: calls were read from the model's text.",
            ),
            (true, false) => {
                Some("The model's endpoint does not support tools: calls were read from the model's text.")
            }
            (false, true) => {
                Some("The model's endpoint does not support streaming: answers came in one piece.")
            }
            (false, false) => None,
        }
    }

    async fn send(&self, chat: Chat<'_>, form: Form) -> Result<Completion, ChatError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &self.key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))
                .map_err(|_| ChatError::Refused("the key cannot be sent in a header".into()))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let body = body(&self.model, chat, form).to_string();
        let reply = self.http.post(&self.address, headers, body.into()).await?;
        if !reply.status.is_success() {
            return Err(self.refused(reply).await);
        }
        if reply.is_events() {
            return self.read_events(reply.events(MAX_ANSWER)).await;
        }
        let body = reply.body(MAX_ANSWER).await?;
        // Events under another content type.
        match body.trim_ascii_start().starts_with(b"data:") {
            true => self.read_events(EventReader::new(&body[..], MAX_ANSWER)).await,
            false => gather::whole(&self.clean(body)),
        }
    }

    /// Reads the events of an answer.
    async fn read_events<R: AsyncRead + Unpin>(
        &self,
        mut events: EventReader<R>,
    ) -> Result<Completion, ChatError> {
        let mut gathering = CompletionBuilder::default();
        let mut left = MAX_ANSWER;
        while let Some(event) = events.next(|_| MAX_ANSWER).await {
            let data = match event.data {
                EventData::Whole(data) => data,
                EventData::None => continue,
                EventData::TooLong(..) => return Err(ChatError::TooLong(MAX_ANSWER)),
            };
            left = left.checked_sub(data.len()).ok_or(ChatError::TooLong(MAX_ANSWER))?;
            if data.trim_ascii() == b"[DONE]" {
                return gathering.finish();
            }
            gathering.add(&self.clean(data))?;
        }
        // Some endpoints end the stream instead of sending `[DONE]`.
        match gathering.has_ended() {
            true => gathering.finish(),
            false => Err(ChatError::Broken("its answer was cut off".into())),
        }
    }

    /// Reads the error that the endpoint sent instead of an answer.
    async fn refused(&self, reply: HttpReply) -> ChatError {
        let (status, retry_after) = (reply.status, reply.retry_after());
        let body = timeout(REFUSAL_LIMIT, reply.body(MAX_REFUSAL)).await;
        let body = self.clean(body.ok().and_then(Result::ok).unwrap_or_default());
        let said = serde_json::from_slice::<Value>(&body).ok().and_then(|body| error_text(&body));
        let text = match said.unwrap_or_else(|| beginning(&body)) {
            text if text.is_empty() => format!("HTTP {status}"),
            text => format!("HTTP {status}: {text}"),
        };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ChatError::Refused(text),
            _ => ChatError::Status { status, text, retry_after },
        }
    }

    /// Returns the bytes of an answer without the key. To be called before any of them are cut out to be
    /// shown.
    fn clean(&self, body: Bytes) -> Bytes {
        let Some(key) = self.maskable() else { return body };
        // JSON may escape any character.
        let is_escaped = [&b"\\/"[..], b"\\u"].iter().any(|escape| memmem::find(&body, escape).is_some());
        let plain = is_escaped.then(|| serde_json::from_slice::<Value>(&body).ok()).flatten();
        let body = plain.map_or(body, |value| value.to_string().into());
        let in_json = Value::from(key).to_string();
        let in_json = in_json.trim_matches('"');
        if [key, in_json].iter().all(|form| memmem::find(&body, form.as_bytes()).is_none()) {
            return body;
        }
        String::from_utf8_lossy(&body).replace(in_json, "***").replace(key, "***").into()
    }

    /// Returns a message without the key, which may have arrived in pieces.
    fn masked(&self, mut completion: Completion) -> Completion {
        let Some(key) = self.maskable() else { return completion };
        let calls = completion.calls.iter_mut();
        let of_calls = calls.flat_map(|call| [&mut call.id, &mut call.name, &mut call.arguments]);
        for text in of_calls.chain([&mut completion.text]).filter(|text| text.contains(key)) {
            *text = text.replace(key, "***");
        }
        completion
    }

    /// Returns the key, if it is long enough to be masked.
    fn maskable(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.expose()).filter(|key| key.len() >= MASKED)
    }
}

/// Adds the calls in the text of a model whose endpoint does not read them. Where calls come beside the text,
/// tags in a text that says anything else are quoted.
fn with_calls(mut completion: Completion, chat: Chat<'_>, form: Form) -> Completion {
    let is_in_text = form.in_text || in_text::is_call(&completion.text);
    if is_in_text && completion.calls.is_empty() && !chat.tools.is_empty() {
        completion.calls = in_text::calls(&completion.text, chat.tools);
        if !form.in_text {
            completion.text.clear();
        }
    }
    completion
}

/// Returns the body of a request.
fn body(model: &str, chat: Chat<'_>, form: Form) -> Value {
    let in_text = form.in_text && !chat.tools.is_empty();
    let messages: Vec<Value> = match in_text {
        true => in_text::messages(chat),
        false => {
            let system =
                (!chat.system.is_empty()).then(|| json!({ "role": "system", "content": chat.system }));
            system.into_iter().chain(chat.messages.iter().map(message)).collect()
        }
    };
    let mut body = json!({ "model": model, "messages": messages, "stream": !form.whole });
    if !chat.tools.is_empty() && !in_text {
        let tool = |tool: &ChatTool| {
            let ChatTool { name, description, parameters } = tool;
            json!({ "type": "function", "function": { "name": name, "description": description, "parameters": parameters } })
        };
        body["tools"] = chat.tools.iter().map(tool).collect();
    }
    if let Some(most) = chat.max_tokens {
        body[if form.renamed { "max_completion_tokens" } else { "max_tokens" }] = json!(most);
    }
    body
}

fn message(message: &ChatMessage) -> Value {
    match message {
        ChatMessage::User(text) => json!({ "role": "user", "content": text }),
        ChatMessage::Tool { id, text, .. } => json!({ "role": "tool", "tool_call_id": id, "content": text }),
        ChatMessage::Model(Completion { text, calls, reasoning, .. }) => {
            let mut message = json!({ "role": "assistant", "content": text });
            if !calls.is_empty() {
                message["tool_calls"] = calls.iter().map(call).collect();
                if let Some(reasoning) = reasoning {
                    message["reasoning_content"] = json!(reasoning);
                }
                if text.is_empty() {
                    message["content"] = Value::Null;
                }
            }
            message
        }
    }
}

fn call(call: &ChatCall) -> Value {
    // Endpoints reject a conversation whose arguments are not JSON; the call's result says that they were
    // not.
    let arguments = if call.read().is_ok_and(|read| read.is_object()) { call.arguments.trim() } else { "{}" };
    let arguments = if arguments.is_empty() { "{}" } else { arguments };
    let mut written = json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    });
    if let Some(extra) = &call.extra {
        written["extra_content"] = extra.clone();
    }
    written
}

/// Returns the text of an error object: `{error: {message}}`, `{error: text}` or `{message}`.
fn error_text(body: &Value) -> Option<String> {
    let error = body.get("error").filter(|error| !error.is_null()).unwrap_or(body);
    let text = error.as_str().or_else(|| error.get("message")?.as_str())?;
    Some(clip(text.trim(), SHOWN))
}

fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * SHOWN)]);
    clip(&text.split_whitespace().collect::<Vec<_>>().join(" "), SHOWN)
}

#[cfg(test)]
mod tests;
