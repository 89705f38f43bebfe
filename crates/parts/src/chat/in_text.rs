//! Tools for endpoints that do not support them: the system text describes them, and calls are read from the
//! model's text.

use serde_json::{Value, json};

use super::{Chat, ChatCall, ChatMessage, ChatTool, Completion};

/// The tags around a call that many models write.
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// The end of a model's thoughts, before which there are no calls.
const THOUGHT: &str = "</think>";
/// The keys of a call's name and of its arguments, besides `tool` and `arguments`.
const NAMES: [&str; 4] = ["tool", "name", "tool_name", "function"];
const ARGUMENTS: [&str; 6] = ["arguments", "parameters", "params", "args", "input", "tool_input"];
/// Keys beside them that say nothing.
const OTHERS: [&str; 4] = ["id", "type", "call_id", "index"];
/// How many places of a text are tried as the beginning of a call.
const TRIED: usize = 32;

/// Adds the tools to the system text.
pub fn system(system: &str, tools: &[ChatTool]) -> String {
    let mut text = system.to_string();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(
        "You can call tools. To call one, answer with nothing but a JSON object: {\"tool\": \"NAME\", \"arguments\": {...}}; for \
         several at once, with an array of such objects. The results come with the next message. Answer in plain text when \
         you are done.\n\nTools, each with the JSON Schema of its arguments:\n",
    );
    for tool in tools {
        text.push_str(&format!("- {}: {}\n  {}\n", tool.name, tool.description, tool.parameters));
    }
    text
}

/// Returns the result of a call as the user says it.
pub fn result(tool: &str, text: &str) -> String {
    format!("The result of `{tool}`:\n{text}")
}

/// Returns a conversation in chat messages of text. Roles take turns.
pub(super) fn messages(chat: Chat<'_>) -> Vec<Value> {
    let mut all: Vec<(&str, String)> = vec![("system", system(chat.system, chat.tools))];
    for message in chat.messages {
        let (role, text) = match message {
            ChatMessage::User(text) => ("user", text.clone()),
            ChatMessage::Tool { name, text, .. } => ("user", result(name, text)),
            ChatMessage::Model(completion) => ("assistant", said(completion, chat.tools)),
        };
        match all.last_mut().filter(|(last, _)| *last == role) {
            Some((_, said)) => *said = format!("{said}\n\n{text}"),
            None => all.push((role, text)),
        }
    }
    all.into_iter().map(|(role, text)| json!({ "role": role, "content": text })).collect()
}

/// Returns what the model has said: its text, and the calls that came beside it.
fn said(Completion { text, calls, .. }: &Completion, tools: &[ChatTool]) -> String {
    if calls.is_empty() || !self::calls(text, tools).is_empty() {
        return text.clone();
    }
    let call = |call: &ChatCall| {
        let arguments = call.read().unwrap_or_else(|_| json!(call.arguments));
        json!({ "tool": call.name, "arguments": arguments })
    };
    let beside = calls.iter().map(call).collect::<Value>().to_string();
    if text.is_empty() { beside } else { format!("{text}\n{beside}") }
}

/// Returns the text behind a model's thoughts.
fn without_thoughts(text: &str) -> &str {
    text.rsplit_once(THOUGHT).map_or(text, |(_, text)| text)
}

/// Whether a text is a call between tags, or several, and nothing else.
pub(super) fn is_call(text: &str) -> bool {
    let blocks = without_thoughts(text).trim().strip_suffix(CLOSE);
    blocks.is_some_and(|blocks| blocks.split(CLOSE).all(|block| block.trim_start().starts_with(OPEN)))
}

/// Reads the calls in a text: between tags, or as JSON by itself, in a fence, or behind some words.
pub fn calls(text: &str, tools: &[ChatTool]) -> Vec<ChatCall> {
    let text = without_thoughts(text);
    let mut found = if text.contains(OPEN) { between_tags(text, tools) } else { in_json(text, tools) };
    for (at, call) in found.iter_mut().enumerate() {
        call.id = format!("call_{at}");
    }
    found
}

/// Reads each call between tags; the last one may lack its end. Without JSON, it is a call with wrong
/// arguments.
fn between_tags(text: &str, tools: &[ChatTool]) -> Vec<ChatCall> {
    let inside = text.split(OPEN).skip(1).map(|rest| rest.split(CLOSE).next().unwrap_or(rest).trim());
    let read = |inside: &str| match in_json(inside, tools) {
        calls if calls.is_empty() => {
            vec![ChatCall { name: "tool_call".into(), arguments: inside.into(), ..ChatCall::default() }]
        }
        calls => calls,
    };
    inside.flat_map(read).collect()
}

/// Reads the first calls in JSON, and those that follow at once.
fn in_json(text: &str, tools: &[ChatTool]) -> Vec<ChatCall> {
    let begins = text.match_indices(['{', '[']).map(|(at, _)| at).take(TRIED);
    begins.map(|at| beginning_with(&text[at..], tools)).find(|calls| !calls.is_empty()).unwrap_or_default()
}

fn beginning_with(text: &str, tools: &[ChatTool]) -> Vec<ChatCall> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok);
    let calls = |value: Value| match value {
        Value::Array(items) => items
            .iter()
            .map(|item| call(item, tools))
            .collect::<Option<Vec<_>>>()
            .filter(|all| !all.is_empty()),
        value => call(&value, tools).map(|one| vec![one]),
    };
    values.map_while(calls).flatten().collect()
}

/// Reads a call from an object with a tool's name, its arguments, and nothing else of meaning.
fn call(value: &Value, tools: &[ChatTool]) -> Option<ChatCall> {
    let fields = value.as_object()?;
    // The whole call may be in `function`.
    if let Some(inner @ Value::Object(_)) = fields.get("function") {
        return call(inner, tools);
    }
    let (name_key, name) = NAMES.iter().find_map(|key| Some((*key, fields.get(*key)?.as_str()?)))?;
    let given = ARGUMENTS.iter().find_map(|key| Some((*key, fields.get(*key)?)));
    let is_other = |key: &&String| *key != name_key && given.is_none_or(|(own, _)| *key != own);
    if fields.keys().filter(is_other).any(|key| !OTHERS.contains(&key.as_str())) {
        return None;
    }
    // Only the form that was asked for may name a tool that does not exist.
    let known = tools.iter().find(|tool| bare(&tool.name) == bare(name));
    if known.is_none() && name_key != "tool" {
        return None;
    }
    let arguments = match given {
        None => "{}".into(),
        Some((_, Value::String(text))) => text.clone(),
        Some((_, value)) => value.to_string(),
    };
    let name = known.map_or(name, |tool| &tool.name).to_string();
    Some(ChatCall { name, arguments, ..ChatCall::default() })
}

/// Returns the letters and digits of a name, which models write with any separator.
fn bare(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<ChatTool> {
        let tool =
            |name: &str| ChatTool { name: name.into(), description: "Does".into(), parameters: json!({}) };
        vec![tool("a__b"), tool("c")]
    }

    #[test]
    fn a_call_is_read_from_text() {
        let check = |text: &str, expected: &[(&str, &str)]| {
            let calls = calls(text, &tools());
            let read: Vec<(&str, &str)> = calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
            assert_eq!(read, expected, "{text}");
        };
        let one = [("a__b", r#"{"n":1}"#)];
        check(r#"{"tool": "a__b", "arguments": {"n": 1}}"#, &one);
        check(r#"<tool_call>{"name": "a__b", "arguments": {"n": 1}}</tool_call>"#, &one);
        check("Now:\n<tool_call>\n{\"name\": \"a.b\", \"parameters\": {\"n\": 1}}\n", &one);
        check(r#"{"type": "function", "function": {"name": "a__b", "arguments": "{\"n\":1}"}}"#, &one);
        check(r#"<think>{"tool": "c"}?</think>{"tool": "a__b", "arguments": {"n": 1}}"#, &one);
        check("I will look.\n```json\n{\"tool\": \"a__b\"}\n```", &[("a__b", "{}")]);
        check("[TOOL_CALLS] [{\"name\": \"c\", \"arguments\": {}}]", &[("c", "{}")]);
        let two = [("a__b", "{}"), ("c", "{}")];
        check(r#"[{"tool": "a__b", "arguments": {}}, {"tool": "c", "arguments": {}}]"#, &two);
        check("{\"tool\": \"a__b\"}\n{\"tool\": \"c\"}\nDone.", &two);
        check(r#"<tool_call>{"name":"a__b"}</tool_call><tool_call>{"name":"c"}</tool_call>"#, &two);
        // The model reads that there is no such tool, and that its arguments are not JSON.
        check(r#"{"tool": "nope", "arguments": {}}"#, &[("nope", "{}")]);
        check("<tool_call>a__b(n=1)</tool_call>", &[("tool_call", "a__b(n=1)")]);
        check("The answer is {x}.", &[]);
        check(r#"{"tool": "hammer", "price": 5}"#, &[]);
        check(r#"{"name": "Ann", "arguments": {}}"#, &[]);
        check(r#"{"name": "c", "price": 5}"#, &[]);
        check(r#"{"tool": 5}"#, &[]);
        check("} {", &[]);
        check("", &[]);
        assert_eq!(calls(&"[".repeat(100_000), &tools()), []);
    }

    #[test]
    fn tags_are_a_call_only_if_there_is_nothing_else() {
        let one = r#"<tool_call>{"name": "c"}</tool_call>"#;
        let check = |text: &str, expected: bool| assert_eq!(is_call(text), expected, "{text}");
        check(one, true);
        check(&format!(" {one}\n{one}\n"), true);
        check(&format!("<think>Now.</think>\n{one}"), true);
        check(&format!("The page says: {one}"), false);
        check(&format!("{one} is on the page."), false);
        check(&format!("{one} and {one}"), false);
        check("<tool_call>{\"name\": \"c\"}", false);
        check("</tool_call>", false);
        check("", false);
    }

    #[test]
    fn a_conversation_is_told_in_turns() {
        let call = |name: &str| ChatCall { id: "call_0".into(), name: name.into(), ..ChatCall::default() };
        let answer = |text: &str| ChatMessage::Tool {
            id: "call_0".into(),
            name: "c".into(),
            text: text.into(),
            failed: false,
        };
        let model = |text: &str| {
            ChatMessage::Model(Completion {
                text: text.into(),
                calls: vec![call("c")],
                ..Completion::default()
            })
        };
        let in_text = r#"Again: {"tool": "c"}"#;
        let messages = [
            ChatMessage::User("Look".into()),
            model(""),
            answer("one"),
            answer("two"),
            model("Now c."),
            answer("three"),
            model(in_text),
        ];
        let chat = Chat { system: "Be brief.", messages: &messages, tools: &tools(), max_tokens: None };
        let told = super::messages(chat);
        let roles: Vec<&Value> = told.iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "assistant", "user", "assistant"]);
        assert!(
            told[0]["content"]
                .as_str()
                .is_some_and(|text| text.starts_with("Be brief.") && text.contains("- a__b: Does"))
        );
        assert_eq!(told[2]["content"], r#"[{"tool":"c","arguments":{}}]"#);
        assert_eq!(told[3]["content"], "The result of `c`:\none\n\nThe result of `c`:\ntwo");
        assert_eq!(told[4]["content"], "Now c.\n[{\"tool\":\"c\",\"arguments\":{}}]");
        assert_eq!(told[6]["content"], in_text);
    }
}
