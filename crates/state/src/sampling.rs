//! The client's own model, asked by sampling (`sampling/createMessage`).
//!
//! A client that supports tools in sampling gets them as tools. For other clients the system text describes
//! the tools, and the model calls one by answering with a JSON object.

use nonet_base::text::clip;
use nonet_parts::chat::{Chat, ChatCall, ChatMessage, ChatTool, Completion, in_text};
use nonet_servers::downstream::{ClientChannel, InputRequests, SAMPLING};
use nonet_text::fault::{Fault, FaultCode};
use serde_json::{Value, json};

use crate::session::Caller;

/// The maximum number of tokens in an answer by default: sampling requires a number.
const MAX_TOKENS: u32 = 4_096;
/// The longest accepted answer, in bytes.
const MAX_ANSWER: usize = 8 << 20;
/// The key of the request.
const KEY: &str = "sample";

/// The model behind a call's client.
pub struct ClientModel {
    app: String,
    client: ClientChannel,
    /// Whether the client supports tools in sampling.
    takes_tools: bool,
}

impl ClientModel {
    /// Returns the model of a call's client, for an app.
    ///
    /// # Errors
    ///
    /// If the client does not offer it.
    pub fn new(app: &str, caller: &Caller) -> Result<Self, Fault> {
        let can = |client: &&ClientChannel, params: Value| client.can_answer(SAMPLING, &params);
        match caller.asker.as_ref().filter(|client| can(client, json!({}))) {
            Some(client) => Ok(Self {
                app: app.into(),
                client: client.clone(),
                takes_tools: can(&client, json!({ "tools": [] })),
            }),
            None => Err(Fault::new(
                FaultCode::UpstreamError,
                format!(
                    "The app `{app}` uses the client's model, but this client does not offer it (sampling). The user can set `apps.{app}.model = {{ base_url = \"…\", name = \"…\" }}` in servers.toml instead."
                ),
            )),
        }
    }

    /// Asks the model for its next message.
    ///
    /// # Errors
    ///
    /// If the client refuses, has left, or answers with something else.
    pub async fn complete(&self, chat: Chat<'_>) -> Result<Completion, Fault> {
        let request = json!({ "method": SAMPLING, "params": self.params(chat) });
        let replies = self.client.put(InputRequests::from_iter([(KEY.to_string(), request)])).await;
        match replies.and_then(|mut replies| replies.remove(KEY)) {
            Some(Ok(reply)) => self.read(&reply, chat.tools),
            Some(Err(error)) => Err(self.fault(&format!("refused to answer: {}", clip(&error.message, 300)))),
            None => Err(self
                .fault("can no longer be asked: it is asked only while its own call is open, not in a task")),
        }
    }

    fn fault(&self, what: &str) -> Fault {
        let message = format!("The client's model, which the app `{}` uses, {what}.", self.app);
        Fault::new(FaultCode::UpstreamError, message)
    }

    fn params(&self, chat: Chat<'_>) -> Value {
        let is_in_text = !self.takes_tools && !chat.tools.is_empty();
        let mut messages: Vec<Value> = Vec::new();
        for message in chat.messages {
            let (role, blocks) = match message {
                ChatMessage::User(text) => ("user", vec![text_block(text)]),
                ChatMessage::Model(completion) => ("assistant", said(completion, is_in_text)),
                ChatMessage::Tool { name, text, .. } if is_in_text => {
                    ("user", vec![text_block(&in_text::result(name, text))])
                }
                ChatMessage::Tool { id, text, failed, .. } => {
                    let block = json!({ "type": "tool_result", "toolUseId": id, "content": [text_block(text)], "isError": failed });
                    ("user", vec![block])
                }
            };
            // Results of one message's calls form one message.
            let last = messages.last_mut().filter(|last| last["role"] == role);
            match last.and_then(|last| last.get_mut("content")?.as_array_mut()) {
                Some(content) => content.extend(blocks),
                None => messages.push(json!({ "role": role, "content": blocks })),
            }
        }
        // Older clients accept only one block.
        for content in messages.iter_mut().filter_map(|message| message.get_mut("content")) {
            if let Some([one]) = content.as_array_mut().map(Vec::as_mut_slice) {
                *content = one.take();
            }
        }
        let system =
            if is_in_text { in_text::system(chat.system, chat.tools) } else { chat.system.to_string() };
        let mut params = json!({ "messages": messages, "maxTokens": chat.max_tokens.unwrap_or(MAX_TOKENS) });
        if !system.is_empty() {
            params["systemPrompt"] = json!(system);
        }
        if self.takes_tools && !chat.tools.is_empty() {
            let tool = |tool: &ChatTool| json!({ "name": tool.name, "description": tool.description, "inputSchema": tool.parameters });
            params["tools"] = chat.tools.iter().map(tool).collect();
            params["toolChoice"] = json!({ "mode": "auto" });
        }
        params
    }

    fn read(&self, reply: &Value, tools: &[ChatTool]) -> Result<Completion, Fault> {
        let blocks = match &reply["content"] {
            Value::Array(blocks) => &blocks[..],
            block => std::slice::from_ref(block),
        };
        let mut completion = Completion::default();
        if reply["stopReason"] == "maxTokens" {
            completion.cut_by = Some("the limit on tokens");
        }
        for block in blocks {
            match block["type"].as_str() {
                Some("text") => completion.text.push_str(block["text"].as_str().unwrap_or_default()),
                Some("tool_use") => completion.calls.push(ChatCall {
                    id: block["id"].as_str().unwrap_or_default().into(),
                    name: block["name"].as_str().unwrap_or_default().into(),
                    arguments: block["input"].to_string(),
                    extra: None,
                }),
                _ => {}
            }
        }
        if completion.text.len() > MAX_ANSWER {
            return Err(self.fault(&format!("gave an answer of more than {MAX_ANSWER} bytes")));
        }
        if !self.takes_tools && !tools.is_empty() {
            completion.calls = in_text::calls(&completion.text, tools);
        }
        match completion.text.is_empty() && completion.calls.is_empty() {
            true => Err(self.fault("gave an answer without text")),
            false => Ok(completion),
        }
    }
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn said(completion: &Completion, in_text: bool) -> Vec<Value> {
    let text = (!completion.text.is_empty()).then(|| text_block(&completion.text));
    let calls = completion.calls.iter().filter(|_| !in_text).map(|call| {
        let input = call.read().ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
        json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
    });
    text.into_iter().chain(calls).collect()
}
