//! Pins in files and in Redis: with several gateways, with a newer Nonet, and within bounds. What they mean
//! is tested in `nonet-servers`.

use nonet_testing::RedisServer;
use redis::Commands;

use super::{
    super::{
        GatewayStore, Store,
        tests::{
            earlier_file,
            engines::{ROOMY, store_at},
            folder,
        },
    },
    *,
};

const CONFIG: &str = "/etc/servers.toml";

fn open(server: &RedisServer) -> (GatewayStore, Arc<PinStore>) {
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

fn write(pins: &PinStore, name: &str, to: PinStep) {
    pins.write("a", &[PinWrite { kind: PinKind::Tool, name: name.into(), to }], 5).expect("written");
}

fn only(pins: &PinStore) -> Pin {
    let mut all = pins.of_server("a").expect("readable");
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Returns the texts in Redis, by their fields.
fn texts(server: &RedisServer) -> Vec<String> {
    let all: Vec<String> =
        server.connect().zrange("nonet:{nonet}:of:pin_text:0::a", 0, -1).expect("readable");
    let mut fields: Vec<String> =
        all.iter().filter_map(|member| member.strip_prefix("pin_text:4:0::a:").map(str::to_owned)).collect();
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
    assert_eq!(texts(&server), ["tool:t:4"]);
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
    let (key, mut redis) = ("nonet:{nonet}:record:pin:4:0::a:tool:t", server.connect());
    redis.hset::<_, _, _, ()>(key, "v", "2").expect("written");
    let newer: String = redis.hget(key, "body").expect("readable");
    let error = pins.of_server("a").expect_err("newer");
    assert!(matches!(error, StoreError::NewerValue { .. }), "{error}");
    for step in
        [first("2"), waits("2"), PinStep::Return, PinStep::Vouch { hash: "3".into(), text: "t".into() }]
    {
        write(&pins, "t", step);
    }
    assert_eq!(redis.hget::<_, _, String>(key, "body").expect("readable"), newer);
    redis.hset_multiple::<_, _, _, ()>(key, &[("v", "1"), ("body", "{")]).expect("damaged");
    assert_eq!(pins.of_server("a").expect("readable"), []);
    write(&pins, "t", first("2"));
    assert_eq!(only(&pins).trusted.as_deref(), Some("2"));
}

#[test]
fn a_file_holds_the_pins_of_each_configuration() {
    let folder = folder();
    let pins = PinStore::open(folder.path(), CONFIG).expect("opens");
    write(&pins, "t", first("1"));
    write(&pins, "t", waits("3"));
    let seen = only(&pins);
    let other = PinStore::open(folder.path(), "/other").expect("opens");
    assert_eq!(other.trust(std::slice::from_ref(&seen), 6).expect("written"), 0);
    assert_eq!(
        (other.of_server("a").expect("readable"), other.count_waiting().expect("readable")),
        (vec![], 0)
    );
    assert_eq!(pins.trust(&[seen], 6).expect("written"), 1);
    drop((pins, other));
    assert_eq!(super::super::trusted(folder.path()).expect("counted"), Some(1));
    let pins = PinStore::open(folder.path(), CONFIG).expect("opens");
    let pin = only(&pins);
    assert_eq!((pin.trusted.as_deref(), pin.by_user, pin.waiting.as_deref()), (Some("3"), true, None));
    let texts = pins.texts(&pin).expect("readable");
    assert_eq!(texts, PinTexts { trusted: Some("text 3".into()), waiting: None });
    let version = pins.version().expect("readable");
    assert_eq!(super::super::forget_trust(folder.path()).expect("forgotten"), 1);
    assert!(
        pins.of_server("a").expect("readable").is_empty() && pins.version().expect("readable") != version
    );
}

#[test]
fn a_definition_that_comes_back_waits_no_longer() {
    let pins = PinStore::in_memory(CONFIG).expect("opens");
    write(&pins, "t", first("1"));
    write(&pins, "t", waits("2"));
    assert_eq!(pins.waiting(100).expect("readable").len(), 1);
    write(&pins, "t", PinStep::Return);
    assert_eq!(pins.waiting(100).expect("readable"), []);
    write(&pins, "t", PinStep::Vouch { hash: "3".into(), text: "three".into() });
    assert_eq!(only(&pins).trusted.as_deref(), Some("3"));
}

#[test]
fn trust_of_earlier_versions_is_carried_over() {
    let folder = folder();
    let rows = "INSERT INTO pins (config, server, kind, name, trusted, trusted_text, by_user, waiting, waiting_text, since_ms, told)
        VALUES ('/etc/servers.toml', 'a', 'tool', 't', '1', 'text 1', 1, '2', 'text 2', 9, 1),
        ('/other', 'a', 'tool', 't', '5', NULL, 0, NULL, NULL, 8, 0)";
    earlier_file(&folder, &formats::PINS, 1, rows);
    let pins = PinStore::open(folder.path(), CONFIG).expect("opens");
    let expected = Pin {
        server: "a".into(),
        kind: PinKind::Tool,
        name: "t".into(),
        trusted: Some("1".into()),
        by_user: true,
        waiting: Some("2".into()),
        since_ms: 9,
        told: true,
    };
    let texts = PinTexts { trusted: Some("text 1".into()), waiting: Some("text 2".into()) };
    assert_eq!(pins.waiting(9).expect("readable"), [(expected, texts)]);
    let other = PinStore::open(folder.path(), "/other").expect("opens");
    assert_eq!((only(&other).trusted.as_deref(), only(&other).by_user), (Some("5"), false));
}
