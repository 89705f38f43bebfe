//! The model is in memory only while there is something to embed.

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of},
};

/// Returns the status of search.
fn search_status(client: &mut Client) -> Value {
    json_of(&client.execute("gateway.status", json!({})))["search"].take()
}

fn indexed(client: &mut Client) -> Value {
    eventually("all tools are indexed", || {
        let status = search_status(client);
        let is_whole = status["by_meaning"] == true && status["indexed"] == status["of"];
        is_whole.then_some(status)
    })
}

#[test]
fn known_vectors_need_no_model_before_the_first_search() {
    let tools = json!([
        { "name": "forecast", "description": "Tells whether it will rain in a city" },
        { "name": "translate", "description": "Puts a text into another language" },
    ]);
    let mut client = Setup::new().by_meaning("").server("many", json!({ "tools": tools })).start_program();
    client.until_ready("many");
    assert_eq!(indexed(&mut client)["model_loaded"], true, "it made the vectors");

    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    client.until_ready("many");
    assert_eq!(indexed(&mut client)["model_loaded"], false, "the vectors are kept on disk");
    let found = client.answer("search_tools", json!({ "query": "do I need an umbrella" }));
    assert_eq!(found["results"][0]["name"], "many.forecast", "{found}");
    assert!(!found["hint"].as_str().is_some_and(|hint| hint.contains("keyword")), "{found}");
    assert_eq!(search_status(&mut client)["model_loaded"], true);
}
