use super::*;

fn check_whole(body: Value, expected: Result<Completion, &str>) {
    let read = gather::whole(body.to_string().as_bytes());
    assert_eq!(read.map_err(|error| error.to_string()), expected.map_err(String::from), "{body}");
}

fn said(text: &str) -> Completion {
    Completion { text: text.into(), ..Completion::default() }
}

fn called(calls: &[(&str, &str, &str)]) -> Completion {
    let call = |(id, name, arguments): &(&str, &str, &str)| ChatCall {
        id: (*id).into(),
        name: (*name).into(),
        arguments: (*arguments).into(),
        extra: None,
    };
    Completion { calls: calls.iter().map(call).collect(), ..Completion::default() }
}

#[test]
fn an_answer_is_read_as_endpoints_write_it() {
    let choice = |message: Value| json!({ "choices": [{ "message": message, "finish_reason": "stop" }] });
    check_whole(choice(json!({ "role": "assistant", "content": "Hi" })), Ok(said("Hi")));
    let parts =
        json!([{ "type": "text", "text": "a" }, { "type": "image" }, { "type": "text", "text": "b" }]);
    check_whole(choice(json!({ "content": parts, "tool_calls": null })), Ok(said("ab")));
    check_whole(choice(json!({ "content": null, "refusal": "I will not" })), Ok(said("I will not")));
    let calls = json!([
        { "id": "a", "function": { "name": "x", "arguments": "{\"n\":1}" } },
        { "function": { "name": "y", "arguments": { "n": 2 } } },
        { "id": "", "function": { "name": "y" } },
    ]);
    check_whole(
        choice(json!({ "content": "", "tool_calls": calls })),
        Ok(called(&[("a", "x", "{\"n\":1}"), ("call_1", "y", "{\"n\":2}"), ("call_2", "y", "")])),
    );
    let cut =
        json!({ "choices": [{ "index": 0, "message": { "content": "Once" }, "finish_reason": "length" }] });
    check_whole(cut, Ok(Completion { cut_by: Some("the limit on tokens"), ..said("Once") }));
}

#[test]
fn what_is_no_completion_is_told_with_its_beginning() {
    let check = |body: &str, expected: &str| {
        let error = gather::whole(body.as_bytes()).expect_err(body).to_string();
        assert!(error.contains(expected), "{error}");
    };
    check("<html>\n <h1>502</h1>", "expected value at line 1 column 1): <html> <h1>502</h1>");
    check("{\"choices\": [", "EOF");
    check("[]", "no `choices`");
    check("{\"choices\": []}", "no `choices`");
    check("{\"choices\": null}", "no `choices`");
    check("{\"choices\": [{}]}", "neither text nor a tool call");
    check("{\"choices\": [{\"message\": {}, \"finish_reason\": \"content_filter\"}]}", "content_filter");
    check("{\"choices\": [{\"message\": {\"tool_calls\": 5}}]}", "invalid type");
    check("{\"error\": {\"message\": \"no such model\"}}", "it answered with an error: no such model");
    check("{\"error\": \"overloaded\"}", "overloaded");
    check(&"x".repeat(10_000), "xxx...");
    let calls = vec![json!({ "function": { "name": "x" } }); 1_001];
    check(
        &json!({ "choices": [{ "message": { "tool_calls": calls } }] }).to_string(),
        "more than 1000 tool calls",
    );
}

async fn check_events(events: &[&str], expected: Result<Completion, &str>) {
    let text: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let read = endpoint().read_events(EventReader::new(text.as_bytes(), MAX_ANSWER)).await;
    assert_eq!(read.map_err(|error| error.to_string()), expected.map_err(String::from), "{text}");
}

#[tokio::test]
async fn events_are_put_together() {
    let end = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    let text = |text: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#);
    let (one, two) = (text("He"), text("llo"));
    check_events(&[&one, r#"{"choices":[],"usage":{}}"#, &two, end, "[DONE]"], Ok(said("Hello"))).await;
    check_events(&[&one, &two, end], Ok(said("Hello"))).await;
    check_events(&[&one, "[DONE]"], Ok(said("He"))).await;
    check_events(&[&one, &two], Err("its answer was cut off")).await;
    check_events(&[], Err("its answer was cut off")).await;
    check_events(&["[DONE]"], Err("its answer has no `choices`")).await;
    check_events(
        &[&one, r#"{"error":{"message":"out of memory"}}"#],
        Err("it answered with an error: out of memory"),
    )
    .await;
    let calls = |part: &str| format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{part}]}}}}]}}"#);
    let numbered = [
        calls(r#"{"index":0,"id":"a","function":{"name":"x","arguments":""}}"#),
        calls(r#"{"index":1,"id":"b","function":{"name":"y","arguments":"{}"}}"#),
        calls(r#"{"index":0,"function":{"arguments":"{\"n\":"}}"#),
        calls(r#"{"index":0,"id":"","function":{"name":null,"arguments":"1}"}}"#),
    ];
    let both = Ok(called(&[("a", "x", "{\"n\":1}"), ("b", "y", "{}")]));
    let events: Vec<&str> = numbered.iter().map(String::as_str).chain([end]).collect();
    check_events(&events, both.clone()).await;
    // All with the same number, or with none.
    let alike = [
        calls(r#"{"index":0,"id":"a","function":{"name":"x","arguments":"{\"n\":1}"}}"#),
        calls(r#"{"index":0,"id":"b","function":{"name":"y","arguments":"{}"}}"#),
    ];
    check_events(&[&alike[0], &alike[1], end], both.clone()).await;
    let none = alike.map(|event| event.replace("\"index\":0,", ""));
    check_events(&[&none[0], &none[1], end], both).await;
}

#[test]
fn a_request_repeats_the_conversation() {
    let call = ChatCall {
        extra: Some(json!({ "signature": "s" })),
        ..called(&[("a", "x", "{\"n\":1}")]).calls.remove(0)
    };
    let broken = called(&[("b", "y", "{\"n\":")]).calls.remove(0);
    let messages = [
        ChatMessage::User("How many?".into()),
        ChatMessage::Model(Completion {
            calls: vec![call, broken],
            reasoning: Some("Let me count".into()),
            ..Completion::default()
        }),
        ChatMessage::Tool { id: "a".into(), name: "x".into(), text: "3".into(), failed: false },
    ];
    let tools = [ChatTool {
        name: "x".into(),
        description: "Counts".into(),
        parameters: json!({ "type": "object" }),
    }];
    let chat = Chat { system: "Count.", messages: &messages, tools: &tools, max_tokens: Some(100) };
    insta::assert_json_snapshot!(body("m", chat, Form::default()));
    let bare = Chat { system: "", messages: &messages[..1], tools: &[], max_tokens: Some(5) };
    assert_eq!(
        body("m", bare, Form { renamed: true, ..Form::default() }),
        json!({ "model": "m", "messages": [{ "role": "user", "content": "How many?" }], "stream": true, "max_completion_tokens": 5 })
    );
}

#[test]
fn a_refused_request_takes_another_form() {
    let tools = [ChatTool { name: "x".into(), description: String::new(), parameters: json!({}) }];
    let check = |status: u16, text: &str, tools: &[ChatTool], expected: Option<Form>| {
        let status = StatusCode::from_u16(status).expect("a status");
        let refusal = ChatError::Status { status, text: text.into(), retry_after: None };
        let chat = Chat { system: "", messages: &[], tools, max_tokens: Some(5) };
        assert_eq!(Form::default().after(&refusal, chat), expected, "{text}");
        // The same refusal of the other form ends the attempts.
        if let Some(form) = expected {
            assert_eq!(form.after(&refusal, chat), None, "{text}");
        }
    };
    let in_text = Some(Form { in_text: true, ..Form::default() });
    let whole = Some(Form { whole: true, ..Form::default() });
    check(400, "registry.ollama.ai/library/gemma:2b does not support tools", &tools, in_text);
    check(400, "\"auto\" tool choice requires --enable-auto-tool-choice", &tools, in_text);
    check(500, "tools param requires --jinja flag", &tools, in_text);
    check(400, "registry.ollama.ai/library/gemma:2b does not support tools", &[], None);
    check(400, "Streaming is not supported for this model", &tools, whole);
    check(
        400,
        "Use 'max_completion_tokens' instead.",
        &tools,
        Some(Form { renamed: true, ..Form::default() }),
    );
    check(400, "no such model", &tools, None);
    for status in [402, 429, 502, 503] {
        check(status, "too many requests for tools; plans that support more are", &tools, None);
    }
}

#[test]
fn the_address_keeps_its_path_and_query() {
    let check = |base: &str, expected: &str| {
        let endpoint = ChatEndpoint::new(base, "m", None).expect("an address");
        assert_eq!(endpoint.address.url().as_str(), expected);
    };
    check("http://localhost:11434/v1", "http://localhost:11434/v1/chat/completions");
    check("http://localhost:11434/v1/", "http://localhost:11434/v1/chat/completions");
    check("https://a.example", "https://a.example/chat/completions");
    check("https://a.example/x?api-version=1", "https://a.example/x/chat/completions?api-version=1");
    check("https://a.example/v1/chat/completions", "https://a.example/v1/chat/completions");
}

fn endpoint() -> ChatEndpoint {
    let key = Some(Secret::new("sk-12345"));
    ChatEndpoint::new("http://a.example/v1?code=hidden", "m", key).expect("an address")
}

#[test]
fn a_key_is_in_no_text() {
    let endpoint = endpoint();
    let cleaned = |text: &str| endpoint.clean(Bytes::copy_from_slice(text.as_bytes()));
    assert_eq!(cleaned("{\"bad key\": \"sk-12345!\"}"), "{\"bad key\": \"***!\"}");
    // JSON may escape a key's characters.
    let slashed =
        ChatEndpoint::new("http://a.example/v1", "m", Some(Secret::new("sk-1/2+3\"4"))).expect("one");
    let cleaned_of = |text: &str| slashed.clean(Bytes::copy_from_slice(text.as_bytes()));
    for written in
        [r#"{"e":"sk-1/2+3\"4"}"#, r#"{"e":"sk-1\/2+3\"4"}"#, r#"{"e":"\u0073k-1/2\u002b3\u00224"}"#]
    {
        assert_eq!(cleaned_of(written), "{\"e\":\"***\"}", "{written}");
    }
    let calls = called(&[("sk-12345", "sk-12345", "{\"k\":\"sk-12345\"}")]);
    assert_eq!(endpoint.masked(calls), called(&[("***", "***", "{\"k\":\"***\"}")]));
    // Excerpts are cut out after masking, so half a key never remains.
    let long = format!("{}sk-12345", "x".repeat(SHOWN - 4));
    assert!(!beginning(&cleaned(&long)).contains("sk-"));
    assert_eq!(endpoint.masked(said("my key is sk-12345.")).text, "my key is ***.");
    assert_eq!(endpoint.place(), "http://a.example/v1/chat/completions");
    assert!(!format!("{:?}", endpoint.key).contains("sk-"));
}
