//! Learning from searches: a tool that was called ranks higher for the same request.

use nonet_state::session::Caller;
use serde_json::{Value, json};

use crate::{
    client::command,
    inside::Inside,
    setup::{Setup, eventually, json_of},
};

fn desk() -> Setup {
    let tools = json!({ "tools": [
        { "name": "one", "description": "handles the quarterly papers of a customer" },
        { "name": "two", "description": "handles the quarterly papers of a customer", "on": { "error": "out of order" } },
        { "name": "six", "description": "handles the quarterly papers of a customer" },
        { "name": "water", "description": "waters plants" },
    ] });
    Setup::new().server("desk", tools)
}

const QUERY: &str = "quarterly papers of customers";

/// Returns a client with a lasting session.
fn client(inside: &Inside) -> Caller {
    Caller { lasting: true, ..inside.caller.clone() }
}

async fn search(inside: &Inside, caller: &Caller, query: &str) -> Value {
    json_of(&inside.call_as(caller, "search_tools", json!({ "query": query })).await)
}

async fn execute(inside: &Inside, caller: &Caller, name: &str) {
    inside.call_as(caller, "execute_tool", json!({ "name": name })).await;
}

#[tokio::test]
async fn what_was_called_after_a_search_comes_first_the_next_time() {
    let inside = desk().open().await;
    inside.gateway.observing.recalled().await;
    let caller = client(&inside);
    let before = search(&inside, &caller, QUERY).await;
    assert_ne!(before["results"][0]["name"], "desk.six", "{before}");
    let plants = search(&inside, &caller, "water the plants").await;
    execute(&inside, &caller, "desk.six").await;

    let after = search(&inside, &client(&inside), "the customers' quarterly papers").await;
    assert_eq!(after["results"][0]["name"], "desk.six", "{after}");
    assert_eq!(search(&inside, &caller, "water the plants").await, plants, "others stay as they were");
}

#[tokio::test]
async fn what_is_shown_first_and_passed_over_again_and_again_loses_its_lift() {
    let inside = desk().open().await;
    inside.gateway.observing.recalled().await;
    let first = async |caller: &Caller| search(&inside, caller, QUERY).await["results"][0]["name"].clone();
    for _ in 0..4 {
        let caller = client(&inside);
        search(&inside, &caller, QUERY).await;
        execute(&inside, &caller, "desk.six").await;
    }
    let mut rounds = 0;
    while first(&client(&inside)).await == "desk.six" {
        rounds += 1;
        assert!(rounds < 5, "it is still first after {rounds} calls of another");
        let caller = client(&inside);
        search(&inside, &caller, QUERY).await;
        execute(&inside, &caller, "desk.one").await;
    }
    assert!(rounds > 1, "one call of another is an exception and no habit");
    assert_eq!(first(&client(&inside)).await, "desk.one");
}

#[tokio::test]
async fn only_a_success_of_what_was_found_teaches() {
    let inside = desk().open().await;
    inside.gateway.observing.recalled().await;
    let session = || Caller { session: inside.gateway.sessions.open(None), ..client(&inside) };
    let before = search(&inside, &session(), QUERY).await;
    // A failed call, and a tool that does not fit the search.
    let caller = session();
    search(&inside, &caller, QUERY).await;
    execute(&inside, &caller, "desk.two").await;
    execute(&inside, &caller, "desk.water").await;
    // A client without a lasting session, and one that has not searched.
    let fleeting = Caller { lasting: false, ..session() };
    search(&inside, &fleeting, QUERY).await;
    execute(&inside, &fleeting, "desk.six").await;
    execute(&inside, &session(), "desk.six").await;
    assert_eq!(search(&inside, &session(), QUERY).await, before);
}

#[tokio::test]
async fn learning_can_be_switched_off() {
    let inside = desk().gateway("learn = false").open().await;
    inside.gateway.observing.recalled().await;
    let caller = client(&inside);
    let before = search(&inside, &caller, QUERY).await;
    execute(&inside, &caller, "desk.six").await;
    assert_eq!(search(&inside, &caller, QUERY).await, before);
}

#[test]
fn what_was_learned_outlives_the_gateway_and_is_explained() {
    let mut client = desk().start_program();
    client.until_ready("desk");
    let before = client.answer("search_tools", json!({ "query": QUERY }));
    client.execute("desk.six", json!({}));
    let after = client.answer("search_tools", json!({ "query": QUERY }));
    assert_ne!(before["results"][0]["name"], "desk.six", "{before}");
    assert_eq!(after["results"][0]["name"], "desk.six", "{after}");

    let folder = client.folder.clone();
    let explained = eventually("the outcome is in the store", || {
        let search = ["search", QUERY, "--explain", "--json"];
        let output = command(folder.path()).args(search).output().expect("nonet runs");
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        found["results"][0]["explain"]["learned_from"].is_array().then_some(found)
    });
    let first = &explained["results"][0];
    assert_eq!(first["name"], "desk.six", "{explained}");
    assert_eq!(first["explain"]["learned_from"], json!(["custom", "paper", "quarter"]));
    assert!(first["explain"]["signals"]["learned"].as_f64() > Some(0.0));
    assert_eq!(explained["results"][1]["explain"]["signals"]["learned"], 0.0);

    let output = command(folder.path()).args(["search", QUERY, "--explain"]).output().expect("nonet runs");
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    for part in ["MEANING", "LEARNED", "quarter", "called after a search for"] {
        assert!(table.contains(part), "{part}: {table}");
    }

    let output = command(folder.path()).args(["forget", "--yes"]).output().expect("nonet runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(said.contains("  learned   1 search outcome, "), "{said}");
    let output = command(folder.path()).args(["search", QUERY, "--explain", "--json"]).output();
    let text = String::from_utf8(output.expect("nonet runs").stdout).expect("UTF-8");
    assert!(!text.contains("learned_from"), "{text}");
}

#[tokio::test]
async fn a_call_counts_for_the_last_search_that_found_it() {
    let inside = desk().open().await;
    inside.gateway.observing.recalled().await;
    let caller = client(&inside);
    // Both find the tool, and share less than half of their words.
    let other = "handles a customer";
    let before = search(&inside, &caller, other).await;
    search(&inside, &caller, QUERY).await;
    execute(&inside, &caller, "desk.six").await;
    let session = || Caller { session: inside.gateway.sessions.open(None), ..client(&inside) };
    assert_eq!(search(&inside, &session(), QUERY).await["results"][0]["name"], "desk.six");
    assert_eq!(search(&inside, &session(), other).await, before, "not that of the search before");
}

#[tokio::test]
async fn what_a_session_has_loaded_is_no_match_of_everything() {
    let inside = desk().open().await;
    inside
        .call("execute_tool", json!({ "name": "gateway.load_tools", "params": { "category": "desk" } }))
        .await;
    let found = inside.answer("search_tools", json!({ "query": "zzzz qqqq" })).await;
    assert_eq!(found["results"], json!([]), "{found}");
}
