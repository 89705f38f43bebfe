//! `ask_user`: from a form down to the chat.

use serde_json::{Value, json};

use crate::{
    client::Client,
    inside::Inside,
    setup::{Setup, golden, json_of},
};

async fn alone() -> Inside {
    Setup::new().open().await
}

/// Returns a client of the session era that can show forms.
fn with_forms(answer: impl FnMut(&Value) -> Value + 'static) -> Client {
    let mut client = Setup::new().start_with(json!({ "elicitation": {} }));
    client.answer_questions(answer);
    client
}

#[tokio::test]
async fn a_client_without_forms_asks_in_the_chat_and_comes_back() {
    let inside = alone().await;
    let asked =
        inside.answer("ask_user", json!({ "question": "Which one?", "choices": ["red", "blue"] })).await;
    insta::assert_json_snapshot!(golden(asked.clone()));
    let mut again = asked["next_step"]["arguments"].clone();
    again["answer"] = json!("blue");
    let told = inside.answer("ask_user", again.clone()).await;
    assert_eq!(told, json!({ "status": "answered", "answer": "blue" }));
    let fault = inside.fault("ask_user", again).await;
    assert_eq!(fault["code"], "not_found", "a token is good once: {fault}");
}

#[tokio::test]
async fn a_question_is_answered_by_who_asked_it() {
    let app = "[apps.greet]\n[[apps.greet.steps]]\nid = 'who'\nask = { question = 'Whom?' }\n";
    let inside = Setup::new().toml(app).open().await;
    let other = inside.gateway.sessions.caller(inside.gateway.sessions.open(None), "other");
    let app = json!({ "app_id": "greet", "input": {} });
    for (tool, question) in [
        ("ask_user", json!({ "question": "Which city?" })),
        ("ask_user", json!({ "question": "Which one?", "choices": ["red", "blue"] })),
        ("ask_user", json!({ "question": "Send it?", "content": "Dear all" })),
        ("call_app", app),
    ] {
        let token = inside.answer(tool, question.clone()).await["token"].clone();
        for answer in [json!({ "token": token }), json!({ "token": token, "answer": "1" })] {
            let told = json_of(&inside.call_as(&other, "ask_user", answer).await);
            assert_eq!(told["error"]["code"], "not_found", "{question}: {told}");
            assert!(!told.to_string().contains("Dear all"), "{told}");
        }
        let told = inside.answer("ask_user", json!({ "token": token, "answer": "1" })).await;
        assert!(told.get("error").is_none(), "{question}: {told}");
    }
}

#[tokio::test]
async fn what_is_hidden_in_a_question_is_seen() {
    let inside = alone().await;
    let question = json!({ "question": "Pay\u{202e} whom?", "choices": ["Ada", "Bob\u{200b}"] });
    let asked = inside.answer("ask_user", question.clone()).await;
    assert_eq!(asked["message"], "Pay\\u{202e} whom?\n1. Ada\n2. Bob\\u{200b}");
    let told = replied(&inside, &question, &json!("2")).await;
    assert_eq!(told["answer"], "Bob\\u{200b}", "{told}");
    let content = json!({ "question": "Send it?", "content": "Dear all\u{e0041}" });
    let asked = inside.answer("ask_user", content.clone()).await;
    assert_eq!(
        asked["message"].as_str().map(|text| text.contains("Dear all\\u{e0041}\n")),
        Some(true),
        "{asked}"
    );
    // What is approved is the content itself.
    let told = replied(&inside, &content, &json!("yes")).await;
    assert_eq!(told, json!({ "status": "approved", "content": "Dear all\u{e0041}" }));
    let form = json!({ "type": "object", "properties": { "ci\u{200b}ty": { "type": "string" } } });
    let fault = inside.fault("ask_user", json!({ "question": "Where?", "form": form })).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
}

#[test]
fn what_is_hidden_in_a_form_is_seen_and_an_untouched_text_stays_as_it_is() {
    let mut client = with_forms(|asked| {
        let content = &asked["requestedSchema"]["properties"]["content"]["default"];
        json!({ "action": "accept", "content": { "decision": "approve", "content": content } })
    });
    let told = client.answer("ask_user", json!({ "question": "Send it?", "content": "Dear all\u{202e}" }));
    assert_eq!(told, json!({ "status": "approved", "content": "Dear all\u{202e}" }));
    let asked = client.asked[0].to_string();
    assert!(asked.contains("Dear all\\\\u{202e}") && !asked.contains('\u{202e}'), "{asked}");
}

#[tokio::test]
async fn an_answer_in_the_chat_approves_or_denies() {
    let inside = alone().await;
    for (answer, expected) in [
        ("approve", json!({ "status": "approved", "content": "Dear all" })),
        ("Yes", json!({ "status": "approved", "content": "Dear all" })),
        ("deny", json!({ "status": "denied" })),
    ] {
        let asked = inside.answer("ask_user", json!({ "question": "Send it?", "content": "Dear all" })).await;
        assert!(asked["message"].as_str().is_some_and(|text| text.contains("Dear all")), "{asked}");
        let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": answer })).await;
        assert_eq!(told, expected, "{answer}");
    }
}

/// Asks in the chat and returns an answer.
async fn replied(inside: &Inside, question: &Value, answer: &Value) -> Value {
    let asked = inside.answer("ask_user", question.clone()).await;
    assert_eq!(asked["status"], "needs_user", "{asked}");
    inside.answer("ask_user", json!({ "token": asked["token"], "answer": answer })).await
}

#[tokio::test]
async fn content_is_edited_in_the_chat() {
    let inside = alone().await;
    let question = json!({ "question": "Send it?", "content": "Dear all" });
    let edited = json!({ "status": "approved", "content": "Dear friends", "content_was_edited": true });
    for answer in [
        json!({ "decision": "approve", "content": "Dear friends" }),
        json!({ "answer": "Yes, send it", "edited_content": "Dear friends" }),
        json!("{\"decision\": \"approve\", \"content\": \"Dear friends\"}"),
        json!({ "action": "accept", "content": { "decision": "approve", "content": "Dear friends" } }),
    ] {
        assert_eq!(replied(&inside, &question, &answer).await, edited, "{answer}");
    }
    // Content beside the answer counts too.
    let asked = inside.answer("ask_user", question.clone()).await;
    let beside = json!({ "token": asked["token"], "answer": "ok", "content": "Dear friends" });
    assert_eq!(inside.answer("ask_user", beside).await, edited);
    let same = json!({ "decision": "approve", "content": "Dear all" });
    assert_eq!(
        replied(&inside, &question, &same).await,
        json!({ "status": "approved", "content": "Dear all" })
    );
    let no = json!({ "decision": "deny", "feedback": "too stiff" });
    let denied = json!({ "status": "denied", "user_feedback": "too stiff" });
    assert_eq!(replied(&inside, &question, &no).await, denied);
}

#[tokio::test]
async fn an_answer_about_content_that_is_not_understood_leaves_the_question_open() {
    let inside = alone().await;
    let asked = inside.answer("ask_user", json!({ "question": "Send it?", "content": "Dear all" })).await;
    let again = json!({ "token": asked["token"], "content": "Dear friends" });
    let told = inside.answer("ask_user", again).await;
    assert_eq!((&told["status"], &told["token"]), (&json!("needs_user"), &asked["token"]), "{told}");
    assert!(told["hint"].as_str().is_some_and(|hint| hint.contains("without an `answer`")), "{told}");
    for answer in [
        json!("yes, but warmer"),
        json!("hmm"),
        json!("Keep it"),
        json!("make it shorter"),
        json!("no, too long"),
        json!({ "content": "Dear friends" }),
        json!({ "decision": "approve", "feedback": "warmer" }),
    ] {
        let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": answer })).await;
        assert_eq!((&told["status"], &told["token"]), (&json!("needs_user"), &asked["token"]), "{answer}");
        let hint = told["hint"].as_str().unwrap_or_default();
        assert!(hint.contains("`approve`") && hint.contains("content"), "{told}");
        if answer.is_string() {
            assert_eq!(told["user_feedback"], answer, "{told}");
        }
    }
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "genehmigt" })).await;
    assert_eq!(told["status"], "approved", "{told}");
}

#[tokio::test]
async fn a_choice_in_the_chat_is_a_number_a_text_or_a_beginning() {
    let inside = alone().await;
    let question = json!({ "question": "Which one?", "choices": ["red", "green", "blue"] });
    for answer in [
        json!("2"),
        json!(2),
        json!("2."),
        json!("Green!"),
        json!("gr"),
        json!("green, please"),
        json!({ "answer": "green" }),
    ] {
        let told = replied(&inside, &question, &answer).await;
        assert_eq!(told, json!({ "status": "answered", "answer": "green" }), "{answer}");
    }
    assert_eq!(replied(&inside, &question, &json!("no, thanks")).await, json!({ "status": "denied" }));
    let told = replied(&inside, &question, &json!("No, none of these")).await;
    assert_eq!(told, json!({ "status": "denied" }));
    let next = json!({ "question": "Where to?", "choices": ["Next", "Previous"] });
    assert_eq!(replied(&inside, &next, &json!("n")).await["answer"], "Next");
    let either = json!({ "question": "Where to?", "choices": ["North", "Nowhere"] });
    assert_eq!(replied(&inside, &either, &json!("no")).await["status"], "needs_user");
    let asked = inside.answer("ask_user", question).await;
    for answer in ["4", "yellow", "red and green", "maybe", "no, blue", "No, too dark", "the green one"] {
        let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": answer })).await;
        assert_eq!((&told["status"], &told["token"]), (&json!("needs_user"), &asked["token"]), "{answer}");
        assert!(told["message"].as_str().is_some_and(|text| text.contains("3. blue")), "{told}");
    }
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "1" })).await;
    assert_eq!(told["answer"], "red", "{told}");
    let yes_or_no = json!({ "question": "Go on?", "choices": ["Yes", "No"] });
    assert_eq!(replied(&inside, &yes_or_no, &json!("ja, gerne")).await["answer"], "Yes");
}

#[tokio::test]
async fn several_choices_are_taken_in_the_chat() {
    let inside = alone().await;
    let question =
        json!({ "question": "Which?", "choices": ["red", "green", "blue"], "allow_multiple": true });
    for answer in
        [json!(["red", "blue"]), json!("1 and 3"), json!("red, blue"), json!("1,3"), json!("Red und Blue")]
    {
        let told = replied(&inside, &question, &answer).await;
        assert_eq!(told, json!({ "status": "answered", "answer": ["red", "blue"] }), "{answer}");
    }
    assert_eq!(replied(&inside, &question, &json!("green")).await["answer"], json!(["green"]));
    let told = replied(&inside, &question, &json!("red, pink")).await;
    assert_eq!(told["status"], "needs_user", "{told}");
}

#[tokio::test]
async fn a_form_in_the_chat_is_checked() {
    let inside = alone().await;
    let form = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer", "minimum": 1 }, "rain": { "type": "boolean" } },
        "required": ["city"],
    });
    let question = json!({ "question": "Where to?", "form": form });
    for answer in [
        json!({ "city": "Bern", "days": 3, "rain": false }),
        json!({ "City": "Bern", "days": "3", "rain": "no, thanks" }),
        json!("{\"city\": \"Bern\", \"days\": 3, \"rain\": false}"),
        json!("City: Bern\ndays: 3\nrain: no"),
    ] {
        let told = replied(&inside, &question, &answer).await;
        let expected = json!({ "city": "Bern", "days": 3, "rain": false });
        assert_eq!(told, json!({ "status": "answered", "answer": expected }), "{answer}");
    }
    assert_eq!(replied(&inside, &question, &json!("Bern")).await["answer"], json!({ "city": "Bern" }));
    let asked = inside.answer("ask_user", question).await;
    assert_eq!(asked["form"], form, "{asked}");
    for (answer, part) in [
        (json!({ "days": 3 }), "city"),
        (json!({ "city": "Bern", "days": 0 }), "minimum"),
        (json!({ "city": "Bern", "days": "some" }), "days"),
        (json!("no, Anna"), "could be a no"),
    ] {
        let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": answer })).await;
        assert_eq!((&told["status"], &told["token"]), (&json!("needs_user"), &asked["token"]), "{answer}");
        assert!(told["hint"].as_str().is_some_and(|hint| hint.contains(part)), "{told}");
        assert_eq!(told["form"], form, "{told}");
    }
    let told = inside
        .answer("ask_user", json!({ "token": asked["token"], "answer": { "action": "decline" } }))
        .await;
    assert_eq!(told, json!({ "status": "denied" }));
}

#[tokio::test]
async fn a_no_to_a_form_is_no_name() {
    let inside = alone().await;
    let of = |field: Value| json!({ "question": "Who?", "form": { "type": "object", "properties": { "who": field } } });
    for answer in ["no", "no, Anna"] {
        let told = replied(&inside, &of(json!({ "type": "string" })), &json!(answer)).await;
        assert_eq!(told["status"], "needs_user", "{answer}: {told}");
    }
    let listed = of(json!({ "type": "string", "enum": ["yes", "no"] }));
    assert_eq!(replied(&inside, &listed, &json!("no")).await["answer"], json!({ "who": "no" }));
}

#[test]
fn an_answer_that_does_not_fit_the_form_is_asked_for_in_the_chat() {
    let mut client = with_forms(|_| json!({ "action": "accept", "content": { "answer": "pink" } }));
    let told = client.answer("ask_user", json!({ "question": "Which one?", "choices": ["red", "blue"] }));
    assert_eq!(told["status"], "needs_user", "{told}");
}

#[tokio::test]
async fn a_token_without_an_answer_asks_again_and_a_question_without_words_is_told() {
    let inside = alone().await;
    let asked = inside.answer("ask_user", json!({ "question": "Well?" })).await;
    // A token without an answer repeats its question, which stays open.
    for _ in 0..2 {
        let again = inside.answer("ask_user", json!({ "token": asked["token"] })).await;
        assert_eq!((&again["status"], &again["message"]), (&json!("needs_user"), &json!("Well?")), "{again}");
    }
    let unknown = json!({ "token": "ask-nothing" });
    assert_eq!(inside.fault("ask_user", unknown).await["code"], "not_found");
    assert_eq!(inside.fault("ask_user", json!({})).await["code"], "invalid_params");
    assert_eq!(inside.fault("ask_user", json!({ "question": "  " })).await["code"], "invalid_params");
    let unknown = json!({ "token": "ask-nothing", "answer": "x" });
    assert_eq!(inside.fault("ask_user", unknown).await["code"], "not_found");
}

#[tokio::test]
async fn a_secret_is_never_asked_for_in_a_form() {
    let inside = alone().await;
    for field in ["password", "apiKey", "API_KEY", "github_token", "clientSecret"] {
        let form = json!({ "type": "object", "properties": { field: { "type": "string" } } });
        let fault = inside.fault("ask_user", json!({ "question": "Please", "form": form })).await;
        assert_eq!(fault["code"], "invalid_params", "{field}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|text| text.contains("secret")), "{fault}");
    }
    let hidden =
        json!({ "type": "object", "properties": { "x": { "type": "string", "format": "password" } } });
    assert_eq!(
        inside.fault("ask_user", json!({ "question": "Please", "form": hidden })).await["code"],
        "invalid_params"
    );
    let titled =
        json!({ "type": "object", "properties": { "x": { "type": "string", "title": "Password" } } });
    assert_eq!(
        inside.fault("ask_user", json!({ "question": "Please", "form": titled })).await["code"],
        "invalid_params"
    );
    let plain = inside.fault("ask_user", json!({ "question": "What is your API key?" })).await;
    assert_eq!(plain["code"], "invalid_params", "{plain}");
    let nested = json!({ "type": "object", "properties": { "x": { "type": "object", "properties": {} } } });
    let fault = inside.fault("ask_user", json!({ "question": "Please", "form": nested })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("flat")), "{fault}");
}

#[test]
fn a_client_with_forms_answers_in_the_same_call() {
    let mut client = with_forms(|_| json!({ "action": "accept", "content": { "answer": "blue" } }));
    let told = client.answer("ask_user", json!({ "question": "Which one?", "choices": ["red", "blue"] }));
    assert_eq!(told, json!({ "status": "answered", "answer": "blue" }));
    let asked = &client.asked[0];
    assert_eq!(asked["message"], "Which one?", "{asked}");
    assert_eq!(asked["requestedSchema"]["properties"]["answer"]["enum"], json!(["red", "blue"]), "{asked}");
}

#[test]
fn a_user_may_decline_or_close_the_form() {
    let mut client = with_forms(
        |params| json!({ "action": if params["message"] == "One?" { "decline" } else { "cancel" } }),
    );
    assert_eq!(client.answer("ask_user", json!({ "question": "One?" })), json!({ "status": "denied" }));
    assert_eq!(client.answer("ask_user", json!({ "question": "Two?" })), json!({ "status": "cancelled" }));
}

#[test]
fn content_may_be_edited_in_the_form() {
    let mut client = with_forms(|params| {
        let shown =
            params["requestedSchema"]["properties"]["content"]["default"].as_str().unwrap_or_default();
        let content = if shown == "Dear all" { "Dear friends" } else { shown };
        json!({ "action": "accept", "content": { "decision": "approve", "content": content } })
    });
    let told = client.answer("ask_user", json!({ "question": "Send it?", "content": "Dear all" }));
    assert_eq!(told, json!({ "status": "approved", "content": "Dear friends", "content_was_edited": true }));
    let told = client.answer("ask_user", json!({ "question": "Send it?", "content": "As it is" }));
    assert_eq!(told, json!({ "status": "approved", "content": "As it is" }));
}

#[test]
fn feedback_that_limits_a_yes_in_the_form_is_no_yes() {
    let mut client = with_forms(
        |_| json!({ "action": "accept", "content": { "decision": "approve", "feedback": "but not yet" } }),
    );
    let told = client.answer("ask_user", json!({ "question": "Send it?", "content": "Dear all" }));
    assert_eq!(told["status"], "needs_user", "{told}");
}

#[test]
fn feedback_comes_back_with_a_no() {
    let mut client = with_forms(
        |_| json!({ "action": "accept", "content": { "decision": "deny", "feedback": "too long" } }),
    );
    let told = client.answer("ask_user", json!({ "question": "Send it?", "content": "Dear all" }));
    assert_eq!(told, json!({ "status": "denied", "user_feedback": "too long" }));
}

#[test]
fn a_form_of_several_fields_is_put_as_it_is() {
    let form = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer", "minimum": 1 }, "rain": { "type": "boolean" } },
        "required": ["city"],
    });
    let mut client = with_forms(
        |_| json!({ "action": "accept", "content": { "city": "Bern", "days": 3, "rain": false } }),
    );
    let told = client.answer("ask_user", json!({ "question": "Where to?", "form": form }));
    assert_eq!(told, json!({ "status": "answered", "answer": { "city": "Bern", "days": 3, "rain": false } }));
    let put = &client.asked[0]["requestedSchema"];
    assert_eq!(
        (&put["properties"]["days"]["type"], &put["required"]),
        (&json!("integer"), &json!(["city"])),
        "{put}"
    );
}

#[test]
fn several_choices_may_be_taken() {
    let mut client = with_forms(|_| json!({ "action": "accept", "content": { "answer": ["red", "blue"] } }));
    let arguments =
        json!({ "question": "Which?", "choices": ["red", "green", "blue"], "allow_multiple": true });
    assert_eq!(
        client.answer("ask_user", arguments),
        json!({ "status": "answered", "answer": ["red", "blue"] })
    );
    let put = &client.asked[0]["requestedSchema"]["properties"]["answer"];
    assert_eq!(put["type"], "array", "{put}");
}

#[test]
fn a_client_that_fails_at_the_form_is_asked_in_the_chat() {
    let mut client = Setup::new().start_with(json!({ "elicitation": {} }));
    let told = client.answer("ask_user", json!({ "question": "Well?" }));
    assert_eq!(told["status"], "needs_user", "{told}");
}

#[test]
fn a_user_who_is_away_does_not_block_the_call() {
    let mut client = Setup::new().gateway("soft_deadline = '4s'").start_with(json!({ "elicitation": {} }));
    // The question is never answered: this client only reads.
    let id = client.begin_call("ask_user", json!({ "question": "Well?", "timeout": 300 }));
    let told = crate::setup::eventually("an answer before the soft deadline is far over", || {
        client.silent_answer(id)
    });
    assert_eq!(json_of(&told["result"])["status"], "needs_user", "{told}");
}

#[test]
fn a_stateless_client_is_asked_by_an_unfinished_result() {
    let mut client = Setup::new().start_silently();
    let forms = json!({ "elicitation": { "form": {} } });
    let call =
        json!({ "name": "ask_user", "arguments": { "question": "Which one?", "choices": ["red", "blue"] } });
    for (response, expected) in [
        (
            json!({ "action": "accept", "content": { "answer": "red" } }),
            json!({ "status": "answered", "answer": "red" }),
        ),
        (json!({ "action": "decline" }), json!({ "status": "denied" })),
        (json!({ "action": "cancel" }), json!({ "status": "cancelled" })),
    ] {
        let asked = client.modern("tools/call", call.clone(), forms.clone());
        let result = &asked["result"];
        assert_eq!(result["resultType"], "input_required", "{asked}");
        let requests = result["inputRequests"].as_object().expect("requests");
        let (key, request) = requests.iter().next().expect("one request");
        assert_eq!(request["method"], "elicitation/create", "{asked}");
        assert_eq!(request["params"]["message"], "Which one?", "{asked}");
        let mut again = call.clone();
        again["requestState"] = result["requestState"].clone();
        again["inputResponses"] = json!({ key: response });
        let told = client.modern("tools/call", again, forms.clone());
        assert_eq!(told["result"]["resultType"], "complete", "{told}");
        assert_eq!(json_of(&told["result"]), expected);
    }
}

#[test]
fn a_stateless_client_without_forms_is_asked_in_the_chat() {
    let mut client = Setup::new().start_silently();
    let call = json!({ "name": "ask_user", "arguments": { "question": "Well?" } });
    let told = client.modern("tools/call", call, json!({}));
    assert_eq!(json_of(&told["result"])["status"], "needs_user", "{told}");
}
