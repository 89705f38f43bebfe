//! What the room keeps, for whom, and for how long.

use nonet_auth::Owner;
use nonet_config::Quotas;
use nonet_parts::quotas::Account;

use super::*;

fn room() -> Arc<WaitingRoom<u8>> {
    Arc::new(WaitingRoom::new(None))
}

#[tokio::test]
async fn a_server_gets_its_answers_once_all_are_there() {
    let room = room();
    let call = 1;
    let (reply, mut answered) = oneshot::channel();
    let two = InputRequests::from_iter([("a".into(), json!(1)), ("b".into(), json!(2))]);
    room.post(1, call, true, ServerQuestion::new(two, reply));
    assert!(room.of_call(call + 1).is_empty());
    let keys: Vec<String> = room.of_call(call).keys().cloned().collect();
    room.answer_of_call(call, &BTreeMap::from([(keys[0].clone(), json!("x")), ("other".into(), json!(0))]));
    assert!(answered.try_recv().is_err(), "one is open");
    assert_eq!(room.of_call(call).keys().collect::<Vec<_>>(), [&keys[1]]);
    room.answer_of_call(call, &BTreeMap::from([(keys[1].clone(), json!("y"))]));
    let replies = answered.try_recv().expect("answered");
    assert_eq!(replies.into_values().collect::<Vec<_>>(), [Ok(json!("x")), Ok(json!("y"))]);
    assert!(room.of_call(call).is_empty());
}

#[tokio::test]
async fn only_so_many_requests_are_parked() {
    let room = room();
    let account = |parked: usize| Account::of_session(Quotas { parked, ..Quotas::default() });
    let owner = |account: &Arc<Account>| JobOwner { account: account.clone(), ..JobOwner::default() };
    let park = |account: &Arc<Account>| {
        let owner = owner(account);
        let asked = ServerQuestion::new(InputRequests::new(), oneshot::channel().0);
        room.park(
            room.token("parked-"),
            owner,
            (String::new(), Box::new(())),
            asked,
            CancellationToken::new(),
        );
    };
    let (small, large) = (account(1), account(usize::MAX));
    assert!(room.has_place(&owner(&small)));
    park(&small);
    assert!(!room.has_place(&owner(&small)) && room.has_place(&owner(&large)));
    (1..MAX_PARKED).for_each(|_| park(&large));
    assert!(!room.has_place(&owner(&large)));
    let of_profile = JobOwner { owner: Owner::of("other"), ..owner(&small) };
    assert!(room.has_place(&of_profile), "one profile leaves room for another");
}

#[test]
fn the_page_has_no_question_whose_call_has_ended() {
    let room = room();
    let ask = || {
        let (reply, replied) = oneshot::channel();
        let request = json!({ "method": "elicitation/create", "params": { "message": "Which city?" } });
        let requests = InputRequests::from_iter([("q".into(), request)]);
        room.ask_on_page("shop.buy", ServerQuestion::new(requests, reply));
        replied
    };
    let (ended, mut open) = (ask(), ask());
    drop(ended);
    let shown = room.on_page();
    assert_eq!(
        (shown.len(), shown[0].tool.as_str(), &shown[0].message),
        (1, "shop.buy", &json!("Which city?"))
    );
    let id = shown[0].id;
    let no = || serde_json::from_value(json!({ "action": "decline" })).expect("an answer");
    assert_eq!(room.answer_on_page(id - 1, no()), Err(AnswerError::Unknown));
    assert_eq!(room.answer_on_page(id, no()), Ok(()));
    assert_eq!(open.try_recv().expect("answered")["q"], Ok(json!({ "action": "decline" })));
    assert_eq!(room.answer_on_page(id, no()), Err(AnswerError::Unknown));
}

#[tokio::test]
async fn an_answer_on_the_page_is_read_as_params_are_and_a_refusal_says_why() {
    let room = room();
    let form =
        json!({ "type": "object", "properties": { "days": { "type": "integer" } }, "required": ["days"] });
    let request =
        json!({ "method": "elicitation/create", "params": { "message": "?", "requestedSchema": form } });
    let (reply, mut replied) = oneshot::channel();
    room.ask_on_page(
        "shop.buy",
        ServerQuestion::new(InputRequests::from_iter([("q".into(), request)]), reply),
    );
    let id = room.on_page()[0].id;
    let answer = |content: Value| {
        serde_json::from_value(json!({ "action": "accept", "content": content })).expect("an answer")
    };
    let refused = room.answer_on_page(id, answer(json!({ "days": "soon" })));
    assert!(matches!(&refused, Err(AnswerError::Unfit(why)) if why.contains("days")), "{refused:?}");
    assert_eq!(room.answer_on_page(id, answer(json!({ "days": "5" }))), Ok(()));
    let expected = json!({ "action": "accept", "content": { "days": 5 } });
    assert_eq!(replied.try_recv().expect("answered")["q"], Ok(expected));
}
