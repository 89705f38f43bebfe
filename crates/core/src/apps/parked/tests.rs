//! Which state of parked workflows is kept, for how long, and for whom.

use nonet_store::{GatewayStore, Retention};

use super::*;

fn parked(clock: &Clock) -> ParkedFlows {
    let retention = Retention { bytes: 1 << 20, age: AGE };
    ParkedFlows::new(
        GatewayStore::in_files(None, retention, clock.clone(), "").records,
        clock.clone(),
        RecordKind::Parked,
    )
}

fn flow() -> ParkedFlow {
    let ask = json!({ "question": "Well?" });
    serde_json::from_value(json!({
        "app_id": "a", "digest": "", "input": null, "ended": [], "step": "s", "ask": ask, "timeout_ms": 1, "left_ms": 1,
    }))
    .expect("a flow")
}

fn with(answer: Value) -> ParkedFlow {
    ParkedFlow { answer: Some(answer), ..flow() }
}

#[tokio::test]
async fn what_has_waited_too_long_makes_room() {
    let clock = Clock::default();
    let parked = parked(&clock);
    let mut tokens = Vec::new();
    for _ in 0..MAX_PARKED {
        tokens.push(parked.put("p", None, &flow(), false).await.expect("there is room"));
    }
    assert_eq!(
        parked.put("p", None, &flow(), false).await.map_err(|fault| fault.code),
        Err(FaultCode::RateLimited)
    );
    assert!(parked.put("q", None, &flow(), false).await.is_ok(), "another owner has room");
    assert!(parked.get("p", &tokens[0]).await.is_ok());
    clock.advance(AGE);
    assert_eq!(
        parked.get("p", &tokens[0]).await.map_err(|fault| fault.code).err(),
        Some(FaultCode::NotFound)
    );
    assert!(parked.put("p", None, &flow(), false).await.is_ok());
}

#[tokio::test]
async fn one_answer_is_taken() {
    let parked = parked(&Clock::default());
    let token = parked.put("p", None, &flow(), false).await.expect("there is room");
    let read = async || parked.get("p", &token).await.expect("it waits").0;
    let (first, second) = (read().await, read().await);
    let taken = parked.answered(first, &with(json!({ "status": "answered" }))).await.expect("the first");
    assert_eq!(
        parked.answered(second, &with(json!({}))).await.map(drop).map_err(|f| f.code),
        Err(FaultCode::NotFound)
    );
    assert!(parked.answered(read().await, &with(json!({}))).await.is_err(), "a gateway that runs has it");
    let (_, kept) = parked.get("p", &token).await.expect("it is kept until it has ended");
    assert_eq!(kept.answer, Some(json!({ "status": "answered" })));
    taken.forget().await;
    assert!(parked.get("p", &token).await.is_err());
}

/// Returns everything that is kept for an owner or for a parked workflow.
async fn kept(parked: &ParkedFlows, owner: &str) -> Vec<String> {
    let all = parked.0.records.all(RecordKind::Parked, owner).await.expect("readable");
    all.into_iter().map(|record| record.id).collect()
}

async fn answered(parked: &ParkedFlows, token: &str) -> Checkpoints {
    let (record, _) = parked.get("p", token).await.expect("it waits");
    parked.answered(record, &with(json!({ "status": "answered" }))).await.expect("it is free")
}

#[tokio::test]
async fn what_has_waited_too_long_is_removed_with_its_parts() {
    let clock = Clock::default();
    let parked = parked(&clock);
    let old = parked.put("p", None, &flow(), false).await.expect("there is room");
    let one = ActionResult::of("t".into(), json!({ "content": [] }));
    answered(&parked, &old).await.ended("[\"a\"]".into(), &one, true).await;
    assert_eq!(kept(&parked, &old).await, ["[\"a\"]"]);
    clock.advance(AGE);
    let new = parked.put("p", None, &flow(), false).await.expect("there is room");
    assert_eq!((kept(&parked, "p").await, kept(&parked, &old).await), (vec![new.clone()], vec![]));
    clock.advance(AGE);
    assert!(parked.get("p", &new).await.is_err());
    assert_eq!(kept(&parked, "p").await, [""; 0]);
}

#[tokio::test]
async fn an_end_that_is_too_large_keeps_no_later_one_away() {
    let parked = parked(&Clock::default());
    let token = parked.put("p", None, &flow(), false).await.expect("there is room");
    let text = |size| {
        ActionResult::of("t".into(), json!({ "content": [{ "type": "text", "text": "x".repeat(size) }] }))
    };
    let first = answered(&parked, &token).await;
    // An unneeded value adds no size.
    first.ended("unneeded".into(), &text(MAX_BYTES), false).await;
    first.ended("large".into(), &text(MAX_BYTES), true).await;
    first.ended("small".into(), &text(1), true).await;
    first.set_aside("a").await;
    let next = answered(&parked, &token).await;
    let before = |place| next.before(place).map(|one| one.result);
    assert_eq!(before("small").as_deref(), Some(&*text(1).result));
    assert_eq!(before("unneeded").as_deref(), Some(&json!({ "content": [] })));
    assert!(before("large").is_none());
}

#[tokio::test]
async fn only_what_has_ended_inside_of_unfinished_steps_is_kept_and_no_more_than_fits() {
    let parked = parked(&Clock::default());
    let token = parked.put("p", None, &flow(), false).await.expect("there is room");
    let one = |size: usize| {
        ActionResult::of("t".into(), json!({ "content": [{ "type": "text", "text": "x".repeat(size) }] }))
    };
    let noted = MemoryJournal::default();
    for place in ["[\"a\"]", "[\"b\",0,\"s\"]", "[\"b\",0]", "[\"b\",1,\"s\"]", "[\"c\",0]"] {
        noted.ended(place.into(), &one(1), true).await;
    }
    noted.ended("[\"b\",2]".into(), &one(MAX_BYTES), true).await;
    let ended = ["a", "c"].map(|id| ParkedStep::of(id, &one(1), true));
    parked.keep_parts(&token, &noted, &ended).await;
    assert_eq!(kept(&parked, &token).await, ["[\"b\",0]", "[\"b\",1,\"s\"]"]);
}

#[tokio::test]
async fn a_run_that_is_dropped_frees_its_record() {
    let parked = parked(&Clock::default());
    let token = parked.put("p", None, &flow(), false).await.expect("there is room");
    drop(answered(&parked, &token).await);
    let again = async || {
        let (record, _) = parked.get("p", &token).await.expect("it is kept");
        parked.answered(record, &with(json!({}))).await.is_ok()
    };
    while !again().await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_app_that_asks_again_takes_no_room() {
    let parked = parked(&Clock::default());
    let mut tokens = Vec::new();
    for _ in 0..MAX_PARKED {
        tokens.push(parked.put("p", None, &flow(), false).await.expect("there is room"));
    }
    let checkpoints = answered(&parked, &tokens[0]).await;
    let second = ParkedFlow { answered: 1, ..flow() };
    assert_eq!(parked.put("p", Some(&tokens[0]), &second, false).await.as_ref(), Ok(&tokens[0]));
    checkpoints.asked_again(&[]).await;
    let token = Token::of(&tokens[0], 1);
    let (record, flow) = parked.get("p", &token).await.expect("it waits");
    assert_eq!((flow.answered, flow.answer), (1, None));
    assert!(parked.answered(record, &with(json!({}))).await.is_ok(), "nobody holds it");
}

#[test]
fn each_question_has_a_token() {
    let check = |token: &str, record: &str, answered| {
        let read = Token::read(token);
        assert_eq!((read.record, read.answered), (record, answered), "{token}");
    };
    check("app-12ab", "app-12ab", 0);
    check("app-1234", "app-1234", 0);
    check(&Token::of("app-1234", 2), "app-1234", 2);
    check("app-", "app-", 0);
    check("app-1-x", "app-1-x", 0);
}

#[tokio::test]
async fn what_is_too_large_is_not_kept() {
    let parked = parked(&Clock::default());
    let large = ParkedFlow { input: json!("x".repeat(MAX_BYTES)), ..flow() };
    assert_eq!(
        parked.put("p", None, &large, false).await.map_err(|fault| fault.code),
        Err(FaultCode::InvalidParams)
    );
}
