//! Pins in Redis: with several replicas, with a newer Nonet, and within bounds. Their meaning is tested in the room `pins`.

use nonet_base::clock::Clock;
use nonet_testing::RedisServer;
use redis::Commands;

use super::*;
use crate::{
    RedisStore, Store,
    tests::engines::{ROOMY, store_at},
};

fn open(server: &RedisServer) -> (RedisStore, Arc<dyn PinStore>) {
    let store = store_at(server, ROOMY, &Clock::default());
    let pins = store.shared_pins().expect("they are shared");
    (store, pins)
}

fn given(hash: &str) -> (String, String) {
    (hash.into(), format!("text {hash}"))
}

fn first(hash: &str) -> PinStep {
    let (hash, text) = given(hash);
    PinStep::First { hash, text }
}

fn waits(hash: &str) -> PinStep {
    let (hash, text) = given(hash);
    PinStep::Wait { hash, text }
}

fn write(pins: &Arc<dyn PinStore>, name: &str, to: PinStep) {
    pins.write("a", &[PinWrite { kind: PinKind::Tool, name: name.into(), to }], 5).expect("written");
}

fn only(pins: &Arc<dyn PinStore>) -> Pin {
    let mut all = pins.of_server("a").expect("readable");
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Returns the texts in Redis, by their fields.
fn texts(server: &RedisServer) -> Vec<String> {
    let mut fields: Vec<String> = server.connect().hkeys("nonet:{nonet}:pins:texts:a").expect("readable");
    fields.sort();
    fields
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_trusted_as_it_was_seen_only_and_texts_go_with_their_hashes() {
    let Some(server) = RedisServer::start() else { return };
    let (_here, pins) = open(&server);
    write(&pins, "t", first("1"));
    write(&pins, "t", first("2"));
    assert_eq!(only(&pins).trusted.as_deref(), Some("1"), "the first sight counts");
    assert_eq!(texts(&server), ["tool:t:1"]);
    let version = pins.version().expect("readable");
    write(&pins, "t", waits("2"));
    assert!(pins.version().expect("readable") > version);
    let seen = only(&pins);
    assert_eq!((seen.waiting.as_deref(), seen.told, seen.since_ms), (Some("2"), false, 5));
    assert_eq!(pins.told(std::slice::from_ref(&seen)).expect("written"), 1);
    assert!(only(&pins).told);
    write(&pins, "t", waits("3"));
    assert_eq!(texts(&server), ["tool:t:1", "tool:t:3"]);
    assert!(!only(&pins).told, "of another definition nobody was told");
    assert_eq!(pins.trust(&[seen], 6).expect("written"), 0, "it is another one now");
    let seen = only(&pins);
    assert_eq!(pins.count_waiting().expect("readable"), 1);
    let expected = PinTexts { trusted: Some("text 1".into()), waiting: Some("text 3".into()) };
    assert_eq!(pins.waiting(9).expect("readable"), [(seen.clone(), expected)]);
    let (_other, others) = open(&server);
    assert_eq!(others.trust(std::slice::from_ref(&seen), 6).expect("written"), 1);
    let pin = only(&pins);
    assert_eq!((pin.trusted.as_deref(), pin.by_user, pin.waiting.as_deref()), (Some("3"), true, None));
    assert_eq!(texts(&server), ["tool:t:3"]);
    assert_eq!((pins.waiting(9).expect("readable"), pins.count_waiting().expect("readable")), (vec![], 0));
    write(&pins, "t", PinStep::Vouch { hash: "4".into(), text: "text 4".into() });
    assert_eq!(pins.texts(&only(&pins)).expect("readable").trusted.as_deref(), Some("text 4"));
    let bytes: u64 = server.connect().hget("nonet:{nonet}:pins:bytes", "a").expect("readable");
    assert_eq!(bytes, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_whose_servers_differ_do_not_change_a_pin_in_turns() {
    let Some(server) = RedisServer::start() else { return };
    let (here, pins) = open(&server);
    let (_other, others) = open(&server);
    write(&pins, "t", first("1"));
    write(&pins, "t", waits("2"));
    let version = pins.version().expect("readable");
    write(&others, "t", PinStep::Return);
    assert_eq!(only(&pins).waiting.as_deref(), Some("2"), "the first replica still lists it");
    assert_eq!(pins.version().expect("readable"), version, "nobody compares again");
    here.leave().await.expect("left");
    write(&others, "t", PinStep::Return);
    assert_eq!(only(&others).waiting, None);
    write(&others, "t", waits("3"));
    write(&others, "t", PinStep::Return);
    assert_eq!(only(&others).waiting, None, "its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_may_have_any_characters_and_texts_have_a_bound() {
    let Some(server) = RedisServer::start() else { return };
    let (_here, pins) = open(&server);
    let names = ["", ":", "a:b", "\u{0}", "ü \"'\\{}", "x y"];
    names.iter().for_each(|name| write(&pins, name, waits("1")));
    let waiting = pins.waiting(9).expect("readable");
    let mut found: Vec<&str> = waiting.iter().map(|(pin, _)| pin.name.as_str()).collect();
    let mut expected = names.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(waiting.iter().all(|(_, texts)| texts.waiting.as_deref() == Some("text 1")));
    assert_eq!(pins.waiting(2).expect("readable").len(), 2);
    let seen: Vec<Pin> = waiting.into_iter().map(|(pin, _)| pin).collect();
    assert_eq!(pins.trust(&seen, 7).expect("written"), names.len());

    let text = "x".repeat(MOST_TEXT as usize / 2 + 1);
    for name in ["one", "two"] {
        let step = PinStep::First { hash: name.into(), text: text.clone() };
        pins.write("b", &[PinWrite { kind: PinKind::Prompt, name: name.into(), to: step }], 5)
            .expect("written");
    }
    let both = pins.of_server("b").expect("readable");
    let kept = |pin| pins.texts(pin).expect("readable").trusted.is_some();
    assert_eq!((kept(&both[0]), kept(&both[1])), (true, false));
    assert_eq!(both[1].trusted.as_deref(), Some("two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_of_a_newer_nonet_are_left_alone_and_told() {
    let Some(server) = RedisServer::start() else { return };
    let (_here, pins) = open(&server);
    write(&pins, "t", first("1"));
    let newer = r#"{"v":2,"trusted":"5"}"#;
    let mut redis = server.connect();
    redis.hset::<_, _, _, ()>("nonet:{nonet}:pins:of:a", "tool:t", newer).expect("written");
    let error = pins.of_server("a").expect_err("newer");
    assert!(matches!(error, StoreError::NewerValue { .. }), "{error}");
    for step in
        [first("2"), waits("2"), PinStep::Return, PinStep::Vouch { hash: "3".into(), text: "t".into() }]
    {
        write(&pins, "t", step);
    }
    let value: String = redis.hget("nonet:{nonet}:pins:of:a", "tool:t").expect("readable");
    assert_eq!(value, newer);
    redis.hset::<_, _, _, ()>("nonet:{nonet}:pins:of:a", "tool:t", "{").expect("damaged");
    assert_eq!(pins.of_server("a").expect("readable"), []);
    write(&pins, "t", first("2"));
    assert_eq!(only(&pins).trusted.as_deref(), Some("2"));
}
