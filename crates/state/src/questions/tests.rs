//! How long questions and approvals are kept, and for whom.

use nonet_config::Quotas;
use nonet_parts::quotas::Account;
use nonet_servers::catalog::{Catalog, CatalogSource, Listing};

use super::*;
use crate::{session::Session, waiting_room::MAX_CHAT_BYTES};

fn questions() -> Questions {
    Questions::new(Arc::new(Room::new(None)))
}

fn open_questions(questions: &Questions) -> Vec<String> {
    questions.room.chats(|open, _| Some(open.token.clone()))
}

fn arguments(value: Value) -> AskArguments {
    serde_json::from_value(value).expect("arguments")
}

async fn ask(questions: &Questions, caller: &Caller, value: Value) -> Result<Value, FaultCode> {
    match questions.ask_user(caller, arguments(value)).await {
        Ok(AskOutcome::Answer(answer)) => Ok(json!(answer)),
        Ok(AskOutcome::Run(held)) => Ok(json!({ "runs": format!("{held:?}") })),
        Err(fault) => Err(fault.code),
    }
}

/// Opens a question in the chat and returns its token.
async fn open(questions: &Questions, caller: &Caller) -> String {
    let answer = ask(questions, caller, json!({ "question": "Which city?" })).await.expect("a question");
    assert_eq!(answer["status"], "needs_user");
    answer["token"].as_str().expect("a token").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_token_is_good_once_and_for_an_hour() {
    let (questions, caller) = (questions(), Caller::default());
    let token = open(&questions, &caller).await;
    let again = ask(&questions, &caller, json!({ "token": token })).await.expect("still open");
    assert_eq!(again["token"], json!(token));
    let answer = json!({ "token": token, "answer": "Bonn" });
    let expected = json!({ "status": "answered", "answer": "Bonn" });
    assert_eq!(ask(&questions, &caller, answer.clone()).await, Ok(expected));
    assert_eq!(ask(&questions, &caller, answer).await, Err(FaultCode::NotFound));

    let token = open(&questions, &caller).await;
    tokio::time::advance(QUESTION_AGE).await;
    let late = json!({ "token": token, "answer": "Bonn" });
    assert_eq!(ask(&questions, &caller, late).await, Err(FaultCode::NotFound));
}

#[tokio::test(start_paused = true)]
async fn the_oldest_question_of_the_same_client_makes_room() {
    let client = |name: &str| Caller {
        account: Account::of_errands(name, Quotas { questions: 3, ..Quotas::default() }),
        ..Caller::default()
    };
    let (questions, caller, other) = (questions(), client("one"), client("other"));
    let theirs = open(&questions, &other).await;
    let first = open(&questions, &caller).await;
    for _ in 0..3 {
        tokio::time::advance(Duration::from_millis(1)).await;
        open(&questions, &caller).await;
    }
    assert_eq!(open_questions(&questions).len(), 4);
    let answer = |token: &str| json!({ "token": token, "answer": "Bonn" });
    assert_eq!(ask(&questions, &caller, answer(&first)).await, Err(FaultCode::NotFound));
    assert!(ask(&questions, &other, answer(&theirs)).await.is_ok());

    // Large questions reach the limit sooner.
    let large = json!({ "question": "Send it?", "content": "x".repeat(MAX_CHAT_BYTES / 3) });
    for _ in 0..3 {
        tokio::time::advance(Duration::from_millis(1)).await;
        ask(&questions, &caller, large.clone()).await.expect("a question");
    }
    assert_eq!(open_questions(&questions).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_for_one_call_of_one_owner() {
    let questions = questions();
    let session =
        |id: &str| Caller { session: Session::new(Some(id.into())), lasting: true, ..Caller::default() };
    let (one, other) = (session("one"), session("other"));
    let listed = |description: &str| {
        let tools = vec![Arc::new(json!({ "name": "write", "description": description }))];
        let listing = Arc::new(Listing { tools, ..Listing::default() });
        let source = CatalogSource { server: "files".into(), listing, settings: None };
        let catalog = Catalog::new([source], &Default::default());
        catalog.get("files.write").expect("listed").clone()
    };
    let (tool, redefined) = (listed("Writes"), listed("Writes, and sends a copy"));
    let approve_as = async |tool: &Tool, caller: &Caller, path: &str| {
        let params = json!({ "path": path });
        let params = params.as_object().expect("an object");
        let asked = RequiredApproval {
            rule: "a rule".into(),
            written: json!(params),
            own: None,
            by: ApproveBy::Chat,
            is_of_call: false,
        };
        match questions.approve(caller, tool, params, asked).await? {
            ApprovalOutcome::By(_) => Ok(()),
            ApprovalOutcome::Unasked(unasked) => {
                let request = CallRequest { name: tool.full.to_string(), ..CallRequest::default() };
                Err(questions.hold(caller, *unasked, HeldCall::Tool(Box::new(request))))
            }
        }
    };
    let approve = async |caller: &Caller, path: &str| approve_as(&tool, caller, path).await;
    let fault = approve(&one, "a").await.expect_err("the user has not agreed");
    assert_eq!(fault.code, FaultCode::NeedsApproval);
    let token = open_questions(&questions).pop().expect("a question");
    let yes = json!({ "token": token, "answer": "allow" });
    assert_eq!(ask(&questions, &other, yes.clone()).await, Err(FaultCode::NotFound));
    let approved = ask(&questions, &one, yes).await.expect("an answer");
    assert!(approved["runs"].as_str().is_some_and(|held| held.contains("files.write")), "{approved}");

    assert!(approve(&other, "a").await.is_err(), "another owner");
    assert!(approve(&one, "b").await.is_err(), "other params");
    assert!(approve_as(&redefined, &one, "a").await.is_err(), "another definition");
    assert!(approve(&one, "a").await.is_ok(), "this call");
    assert!(approve(&one, "a").await.is_err(), "once");

    one.session.approve(&tool.full, &tool.hash);
    assert!(approve(&one, "b").await.is_ok(), "every call of the session");
    assert!(approve_as(&redefined, &one, "b").await.is_err(), "not of another definition");
}
