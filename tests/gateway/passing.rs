//! Servers' prompts, resources and completions, through the protocol's own methods.

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually},
    web::{WebClient, modern},
};

fn docs() -> Value {
    json!({
        "prompts": [
            { "name": "plan it", "description": "Plans", "text": "Plan {{what}}.", "arguments": [{ "name": "what", "required": true }] },
        ],
        "resources": [
            { "uri": "file:///a.txt", "text": "alpha", "mimeType": "text/plain", "x-own": { "kept": [1, 2] } },
            { "uri": "note://shared", "text": "of docs" },
            { "uri": "note://linked", "text": "linked", "unlisted": true },
        ],
        "tools": [{ "name": "link", "on": { "result": { "content": [
            { "type": "resource_link", "uri": "note://linked", "name": "linked" },
            { "type": "resource", "resource": { "uri": "note://shared", "text": "of docs" } },
        ] } } }],
    })
}

fn web() -> Value {
    json!({
        "era": "modern",
        "prompts": [{ "name": "greet", "text": "Hello." }],
        "resources": [{ "uri": "note://shared", "text": "of web" }],
        "templates": [{ "uriTemplate": "page://{host}/{path}", "name": "page" }],
    })
}

fn office() -> Setup {
    Setup::new().server("docs", docs()).server("web", web())
}

fn ready() -> Client {
    let mut client = office().start();
    until_listed(&mut client);
    client
}

fn until_listed(client: &mut Client) {
    eventually("both servers have listed", || {
        let listed = client.request("resources/list", json!({}));
        (listed["result"]["resources"].as_array()?.len() == 3).then_some(())
    });
}

fn text(answer: &Value) -> &str {
    answer["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {answer}"))
}

#[test]
fn a_question_and_its_answer_keep_all_their_members() {
    let form = json!({ "type": "object", "properties": { "city": { "type": "string", "x-own": [1] } } });
    let asks =
        json!({ "elicit": { "message": "Where?", "requestedSchema": form, "x-own": { "kept": true } } });
    let setup = Setup::new().server("shop", json!({ "tools": [{ "name": "ask", "on": asks }] }));
    let mut client = setup.start_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "city": "Oslo" }, "x-answer": 7 }));
    let told = client.execute("shop.ask", json!({}));
    assert_eq!(client.asked[0]["x-own"], json!({ "kept": true }), "{:?}", client.asked);
    assert!(told.to_string().contains("x-answer"), "{told}");
}

#[test]
fn resources_of_all_servers_are_listed_and_read() {
    let mut client = ready();
    let listed = client.request("resources/list", json!({}));
    let resources = listed["result"]["resources"].as_array().expect("a list").clone();
    let uris: Vec<&str> = resources.iter().filter_map(|resource| resource["uri"].as_str()).collect();
    assert_eq!(uris, ["file:///a.txt", "nonet://docs/note://shared", "nonet://web/note://shared"]);
    // Unknown fields stay.
    assert_eq!(resources[0]["x-own"], json!({ "kept": [1, 2] }));
    for key in ["resultType", "ttlMs", "cacheScope"] {
        assert!(listed["result"].get(key).is_none(), "{key} is not of this era: {listed}");
    }
    let mut read = |uri: &str| client.request("resources/read", json!({ "uri": uri }));
    assert_eq!(text(&read("file:///a.txt")), "alpha");
    let of_web = read("nonet://web/note://shared");
    assert_eq!(
        (text(&of_web), &of_web["result"]["contents"][0]["uri"]),
        ("of web", &json!("nonet://web/note://shared"))
    );
    // A URI of several servers is ambiguous.
    let ambiguous = read("note://shared");
    assert_eq!(ambiguous["error"]["code"], -32602, "{ambiguous}");
    assert_eq!(ambiguous["error"]["data"]["uris"].as_array().map(Vec::len), Some(2), "{ambiguous}");
    let unknown = read("file:///b.txt");
    assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
    let templates = client.request("resources/templates/list", json!({}));
    assert_eq!(templates["result"]["resourceTemplates"][0]["uriTemplate"], "page://{host}/{path}");
    let page = client.request("resources/read", json!({ "uri": "page://example.org/index" }));
    assert_eq!(text(&page), "page://example.org/index");
}

#[test]
fn links_in_results_can_be_read() {
    let mut client = ready();
    let unknown = client.request("resources/read", json!({ "uri": "note://linked" }));
    assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
    client.until_ready("docs");
    let result = client.execute("docs.link", json!({}));
    // The result is unchanged, and each link leads to the server that gave it.
    assert_eq!(result["content"][0]["uri"], "note://linked");
    assert_eq!(result["content"][1]["resource"]["uri"], "note://shared");
    for (uri, expected) in [("note://linked", "linked"), ("nonet://docs/note://shared", "of docs")] {
        let read = client.request("resources/read", json!({ "uri": uri }));
        assert_eq!(text(&read), expected, "{read}");
    }
    // A link does not decide if another server lists the URI too.
    let shared = client.request("resources/read", json!({ "uri": "note://shared" }));
    assert_eq!(shared["error"]["data"]["uris"].as_array().map(Vec::len), Some(2), "{shared}");
}

#[test]
fn prompts_are_listed_got_and_completed() {
    let mut client = ready();
    let listed = client.request("prompts/list", json!({}));
    let names: Vec<&Value> =
        listed["result"]["prompts"].as_array().expect("a list").iter().map(|p| &p["name"]).collect();
    assert_eq!(names, [&json!("docs__plan_it"), &json!("web__greet")]);
    let plan =
        client.request("prompts/get", json!({ "name": "docs__plan_it", "arguments": { "what": "a trip" } }));
    assert_eq!(plan["result"]["messages"][0]["content"]["text"], "Plan a trip.", "{plan}");
    assert!(plan["result"].get("resultType").is_none(), "{plan}");
    // A server's refusal keeps its wording.
    let missing = client.request("prompts/get", json!({ "name": "docs__plan_it" }));
    assert!(missing["error"]["message"].as_str().is_some_and(|text| text.contains("what")), "{missing}");
    assert_eq!(client.request("prompts/get", json!({ "name": "docs__nothing" }))["error"]["code"], -32602);
    let params = json!({
        "ref": { "type": "ref/prompt", "name": "docs__plan_it" },
        "argument": { "name": "what", "value": "tr" },
    });
    let completed = client.request("completion/complete", params);
    let values = &completed["result"]["completion"]["values"];
    assert_eq!(values[0], "tr-one", "{completed}");
    assert!(
        values[1].as_str().is_some_and(|own| own.contains("plan it")),
        "the server sees its own name: {values}"
    );
}

#[test]
fn a_profile_limits_what_is_passed() {
    let profile = "[profiles.reader]\ncategories = ['web']";
    let mut site = office().toml(profile).serve_program();
    let mut all = WebClient::new(&site.address, "/mcp");
    eventually("both servers have listed", || {
        let listed = all.request("resources/list", json!({})).result();
        (listed["resources"].as_array()?.len() == 3).then_some(())
    });
    let mut reader = WebClient::new(&site.address, "/mcp/reader");
    let listed = reader.request("prompts/list", json!({})).result();
    assert!(!listed.to_string().contains("docs__"), "{listed}");
    let read = reader.request("resources/read", json!({ "uri": "file:///a.txt" })).answer();
    assert_eq!(read["error"]["code"], -32002, "{read}");
    let got = reader.request("prompts/get", json!({ "name": "docs__plan_it" })).answer();
    assert_eq!(got["error"]["code"], -32602, "{got}");
    let _ = site.child().kill();
}

#[test]
fn a_stateless_client_gets_what_its_era_wants() {
    let site = office().serve();
    let listed = eventually("both servers have listed", || {
        let listed = modern(&site.address, "resources/list", json!({})).result();
        (listed["resources"].as_array()?.len() == 3).then_some(listed)
    });
    assert_eq!((&listed["resultType"], &listed["cacheScope"]), (&json!("complete"), &json!("private")));
    let got = modern(
        &site.address,
        "prompts/get",
        json!({ "name": "docs__plan_it", "arguments": { "what": "x" } }),
    );
    assert_eq!(got.result()["resultType"], "complete");
    let unknown = modern(&site.address, "prompts/get", json!({ "name": "nothing" }));
    assert_eq!(unknown.answer()["error"]["code"], -32602);
}

#[test]
fn clients_are_told_when_lists_change() {
    let setup = office();
    let mut client = setup.start_silently();
    let answer = client.initialize("2025-11-25", json!({}));
    let capabilities = &answer["result"]["capabilities"];
    assert_eq!(capabilities["resources"]["listChanged"], true, "{capabilities}");
    assert!(capabilities.get("completions").is_some(), "{capabilities}");
    eventually("the client is told", || {
        client.request("ping", json!({}));
        let told = |method: &str| client.notifications.iter().any(|note| note["method"] == method);
        (told("notifications/prompts/list_changed") && told("notifications/resources/list_changed"))
            .then_some(())
    });
    until_listed(&mut client);
}

fn changing(era: &str) -> Setup {
    let setup = Setup::new();
    let log = setup.path("messages");
    setup.server(
        "docs",
        json!({
            "era": era,
            "message_log": log,
            "resources": [{ "uri": "note://a", "text": "a" }, { "uri": "note://b", "text": "b" }],
            "tools": [
                { "name": "touch_a", "on": { "touch": "note://a", "text": "done" } },
                { "name": "touch_b", "on": { "touch": "note://b", "text": "done" } },
            ],
        }),
    )
}

/// Returns the URIs of update notifications since the last look.
fn updated(client: &mut Client) -> Vec<String> {
    client.request("ping", json!({}));
    let notes = std::mem::take(&mut client.notifications);
    let uris = notes.iter().filter(|note| note["method"] == "notifications/resources/updated");
    uris.filter_map(|note| note["params"]["uri"].as_str().map(String::from)).collect()
}

fn follows(era: &str) {
    let mut client = changing(era).start();
    client.until_ready("docs");
    let taken = client.request("resources/subscribe", json!({ "uri": "note://a" }));
    assert!(taken.get("result").is_some(), "{taken}");
    eventually("the client is told", || {
        client.execute("docs.touch_b", json!({}));
        client.execute("docs.touch_a", json!({}));
        let told = updated(&mut client);
        assert!(!told.contains(&"note://b".to_string()), "it follows one alone: {told:?}");
        told.contains(&"note://a".to_string()).then_some(())
    });
    client.request("resources/unsubscribe", json!({ "uri": "note://a" }));
    updated(&mut client);
    client.execute("docs.touch_a", json!({}));
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(updated(&mut client), Vec::<String>::new());
    let unknown = client.request("resources/subscribe", json!({ "uri": "note://nothing" }));
    assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
}

#[test]
fn a_client_hears_of_changes_at_a_server_of_the_session_era() {
    follows("legacy");
}

#[test]
fn a_client_hears_of_changes_at_a_stateless_server() {
    follows("modern");
}

#[test]
fn a_stateless_client_hears_of_changes_by_its_subscription() {
    let mut client = changing("legacy").start_silently();
    let call = |client: &mut Client, tool: &str| {
        client.modern(
            "tools/call",
            json!({ "name": "execute_tool", "arguments": { "name": tool } }),
            json!({}),
        )
    };
    eventually("`docs` is ready", || {
        (call(&mut client, "docs.touch_b")["result"]["isError"] != true).then_some(())
    });
    let params = json!({
        "notifications": { "resourceSubscriptions": ["note://a"] },
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    });
    client.begin("subscriptions/listen", params);
    eventually("the client is told", || {
        call(&mut client, "docs.touch_a");
        let told = |note: &Value| {
            note["method"] == "notifications/resources/updated" && note["params"]["uri"] == "note://a"
        };
        client.notifications.iter().any(told).then_some(())
    });
}
