//! Any tool, added at any time: a REST service, a server added mid-session, a skill and an app, each found by
//! its meaning and run by one client in one session.

use std::fs;

use serde_json::{Value, json};

use crate::{
    client::Client,
    rest_servers::{json_answer, serve},
    setup::{Setup, eventually, fake_server, json_of, text_of},
};

const SKILL: &str = "---\nname: changelog\ndescription: Writes the notes of a release for its users\n---\nSort the changes of $ARGUMENTS.\n";

const APP: &str = r#"
[apps.morning]
description = "Tells a person what the day will be like: sky and music"
output = "{{song.title}} under {{sky.sky}}"
input_schema = { type = "object", properties = { city = { type = "string" } }, required = ["city"] }
[[apps.morning.steps]]
id = "sky"
tool = "weather.getForecast"
params = { city = "{{input.city}}" }
[[apps.morning.steps]]
id = "song"
tool = "jukebox.pick"
params = { title = "La Mer" }
"#;

/// Returns a document with one operation.
fn forecast(base: &str) -> Value {
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Weather", "version": "1" },
        "servers": [{ "url": base }],
        "paths": { "/forecast/{city}": { "get": {
            "operationId": "getForecast",
            "summary": "Temperature and rain of the coming days",
            "parameters": [{ "name": "city", "in": "path", "required": true, "schema": { "type": "string" } }],
            "responses": { "200": { "description": "The forecast" } },
        } } },
    })
}

/// Returns the first hit of a search, which must be the named one once everything has vectors.
fn found(client: &mut Client, query: &str, name: &str) -> Value {
    eventually(&format!("`{query}` finds {name}"), || {
        let answer = client.answer("search_tools", json!({ "query": query }));
        let hit = &answer["results"][0];
        (hit["name"] == name).then(|| hit.clone())
    })
}

#[test]
fn all_kinds_are_found_by_their_meaning_and_run_in_one_session() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let service =
        runtime.block_on(serve(|seen| json_answer(json!({ "asked": seen.target, "sky": "a blue sky" }))));
    let setup = Setup::new();
    let skill = setup.path("skills/changelog");
    fs::create_dir_all(&skill).expect("a folder");
    fs::write(skill.join("SKILL.md"), SKILL).expect("the skill can be written");
    fs::write(setup.path("weather.json"), forecast(&service.base).to_string())
        .expect("the document can be written");
    let band = json!({ "tools": [{ "name": "play_song", "description": "Plays a song on the gramophone" }] });
    let script = setup.path("band.script.json");
    fs::write(&script, band.to_string()).expect("the script can be written");
    let jukebox = json!({ "tools": [{ "name": "pick", "description": "Picks a record from the box" }] });
    let setup = setup
        .by_meaning("")
        .gateway("skills = ['skills']\nallow_runtime_servers = true")
        .server("jukebox", jukebox)
        .server_of("weather", "openapi = 'weather.json'")
        .toml(APP);
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow" } }));
    client.until_ready("weather");
    client.until_ready("jukebox");

    found(&mut client, "how warm will it be tomorrow in Bergen", "weather.getForecast");
    let sky =
        client.call("execute_tool", json!({ "name": "weather.getForecast", "params": { "city": "Bergen" } }));
    assert_eq!(sky["structuredContent"]["asked"], "/forecast/Bergen", "{sky}");

    let params = json!({ "name": "band", "command": fake_server(), "args": ["--script-file", script] });
    let added = client.answer("execute_tool", json!({ "name": "gateway.add_server", "params": params }));
    assert_eq!((&added["state"], &added["tools"]), (&json!("ready"), &json!(1)), "{added}");
    let asked = client.asked[0]["message"].as_str().expect("a message");
    assert!(asked.contains("--script-file") && asked.contains("band.script.json"), "{asked}");
    found(&mut client, "put on some music for us", "band.play_song");
    let played =
        client.answer("execute_tool", json!({ "name": "band.play_song", "params": { "title": "La Mer" } }));
    assert_eq!(played, json!({ "title": "La Mer" }));

    let hit = found(&mut client, "draft a summary of what changed in this version", "skills.changelog");
    assert_eq!(hit["kind"], "skill", "{hit}");
    let text =
        client.call("execute_tool", json!({ "name": "skills.changelog", "params": { "arguments": "2.0" } }));
    assert!(text_of(&text).contains("Sort the changes of 2.0."), "{text}");

    let hit = found(&mut client, "start my day with a briefing", "apps.morning");
    assert_eq!(hit["kind"], "app", "{hit}");
    let told = client.call("execute_tool", json!({ "name": "apps.morning", "params": { "city": "Bergen" } }));
    assert_eq!(json_of(&told)["output"], "La Mer under a blue sky", "{told}");
}
