//! Left-out servers and servers never reached: both are shown with a remedy.

use std::fs;

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of, notices_of},
    web::WebClient,
};

const DOCS: &str = "url = 'https://example.com/mcp'\nheaders = { Authorization = 'Bearer ${NONET_TEST_UNSET}', X-Key = 's3cr3t' }\ndescription = 'Pages of the team wiki'";
const WHY: &str =
    "`servers.docs.headers.Authorization`: the environment variable `NONET_TEST_UNSET` is not set. ";

fn office() -> Setup {
    Setup::new()
        .server("shop", json!({ "tools": [{ "name": "buy", "description": "Buys a thing" }] }))
        .server_of("docs", DOCS)
        .server_of("mail", "comand = 'npx'")
        .server_of("off", "enabled = false\ncomand = 'npx'")
}

fn has(value: &Value, part: &str) -> bool {
    value.as_str().is_some_and(|text| text.contains(part))
}

fn category(client: &mut Client, name: &str) -> Option<Value> {
    let categories = client.answer("list_categories", json!({}));
    categories["categories"].as_array().expect("a list").iter().find(|one| one["name"] == name).cloned()
}

#[test]
fn a_server_with_a_fault_is_shown_with_what_to_do() {
    let mut client = office().start_program_silently();
    let answer = client.initialize("2025-06-18", json!({}));
    let told = "Left out until the user puts the configuration right (list_categories says how): docs, mail.";
    assert!(has(&answer["result"]["instructions"], told), "{answer}");

    let docs = category(&mut client, "docs").expect("it is shown");
    assert_eq!((&docs["state"], &docs["tool_count"]), (&json!("needs_config"), &json!(0)), "{docs}");
    assert_eq!(docs["description"], "Pages of the team wiki");
    assert!(has(&docs["hint"], WHY) && has(&docs["hint"], " of servers.toml, "), "{docs}");
    let mail = category(&mut client, "mail").expect("it is shown");
    assert!(has(&mail["hint"], "`servers.mail.comand`: unknown key. Did you mean `command`?"), "{mail}");
    assert_eq!(category(&mut client, "off"), None, "it is not wanted");

    let server = client.server("docs");
    assert_eq!(server["state"], "needs_config", "{server}");
    assert!(has(&server["last_error"], WHY), "{server}");

    // Reported once, like a change of the file.
    let notices: Vec<&Value> =
        client.notices.iter().filter(|note| note["kind"] == "servers_left_out").collect();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert_eq!(notices[0]["servers"], json!(["docs", "mail"]));
    assert!(notices[0]["faults"].to_string().contains("NONET_TEST_UNSET"), "{notices:?}");
}

#[test]
fn a_call_of_a_server_with_a_fault_says_why() {
    let mut client = office().start_program();
    client.until_ready("shop");
    for name in ["docs.read_page", "docs__read_page", "mcp__nonet__docs__read_page"] {
        let fault = client.fault(name, json!({}));
        assert_eq!((&fault["code"], &fault["retryable"]), (&json!("server_down"), &json!(false)), "{fault}");
        assert!(has(&fault["message"], WHY) && !has(&fault["message"], "s3cr3t"), "{fault}");
    }
    for (tool, arguments) in [
        ("docs__read_page", json!({})),
        ("get_tool", json!({ "name": "docs.read_page" })),
        ("browse_category", json!({ "category": "docs" })),
        ("search_tools", json!({ "query": "read", "category": "docs" })),
    ] {
        let fault = client.answer(tool, arguments)["error"].take();
        assert_eq!(fault["code"], "server_down", "{tool}: {fault}");
        assert!(has(&fault["message"], WHY), "{tool}: {fault}");
    }
    let report = client.answer("run_parallel", json!({ "actions": [{ "name": "docs.read_page" }] }));
    assert_eq!(report["results"][0]["error"]["code"], "server_down", "{report}");
    // Other unknown names are reported as before.
    assert_eq!(client.fault("shop.bye", json!({}))["code"], "unknown_tool");
    assert_eq!(client.fault("off.x", json!({}))["code"], "unknown_tool");
}

#[test]
fn a_search_names_the_servers_that_may_have_it() {
    let mut client = office()
        .server_of("github", "command = 'no-such-program-of-nonet'\ndescription = 'Issues and pull requests'")
        .start_program();
    client.until_ready("shop");
    client.until("github", "down");
    let mut hint = |query: &str| {
        let found = client.answer("search_tools", json!({ "query": query }));
        found["hint"].as_str().unwrap_or_default().to_string()
    };
    for query in ["the open issues on GitHub", "list pull requests"] {
        let hint = hint(query);
        assert!(hint.contains("`github` may have it but is down: "), "{query}: {hint}");
        assert!(!hint.contains("docs"), "{query}: {hint}");
    }
    let told = hint("find a page in the wiki of the team");
    assert!(told.contains("`docs` may have it but is left out of the configuration: "), "{told}");
    assert!(told.contains("NONET_TEST_UNSET"), "{told}");
    let told = hint("buy a thing");
    assert!(!told.contains("may have it"), "{told}");
    // Its category is there, and near its name.
    let found = client.answer("search_tools", json!({ "query": "issues", "category": "github" }));
    assert!(found["hint"].to_string().contains("`github` may have it but is down: "), "{found}");
    let fault = json_of(&client.call("browse_category", json!({ "category": "githup" })));
    assert_eq!(fault["error"]["did_you_mean"], json!(["github"]), "{fault}");
}

#[test]
fn a_server_comes_in_when_its_fault_is_put_right_and_goes_when_a_new_one_has_one() {
    let mut client = office().start_program();
    client.until_ready("shop");
    let file = client.folder.path().join("servers.toml");
    let text = fs::read_to_string(&file).expect("it is there");
    let program = crate::setup::fake_server();
    let right = format!(
        "command = '{}'\nargs = ['--script', '{{\"tools\":[{{\"name\":\"send\"}}]}}']",
        program.display()
    );
    fs::write(&file, text.replace("[servers.mail]\ncomand = 'npx'", &format!("[servers.mail]\n{right}")))
        .expect("it can be written");
    client.until_ready("mail");
    assert_eq!(client.server("docs")["state"], "needs_config");
    // An existing server keeps its old version while its entry has a fault; a new one is left out.
    fs::write(&file, text + "\n[servers.late]\nurl = 'nowhere'\n").expect("it can be written");
    eventually("the new one is left out", || {
        client.notices.clear();
        category(&mut client, "late").filter(|late| late["state"] == "needs_config")
    });
    assert_eq!(client.server("mail")["state"], "ready");
}

#[test]
fn a_profile_hears_of_the_servers_that_it_is_for() {
    let setup =
        office().toml("[profiles.writer]\ncategories = ['docs']\n[profiles.buyer]\nallow = ['shop.*']");
    let mut client = setup.run(&["--profile", "writer"]);
    let answer = client.initialize("2025-06-18", json!({}));
    assert!(has(&answer["result"]["instructions"], "says how): docs."), "{answer}");
    assert!(category(&mut client, "docs").is_some());
    assert_eq!(category(&mut client, "mail"), None);
    let mut other = client.beside(&["--profile", "buyer"]);
    other.initialize("2025-06-18", json!({}));
    assert_eq!(category(&mut other, "docs"), None);
    assert_eq!(other.fault("docs.read_page", json!({}))["code"], "unknown_tool");
    assert_eq!(other.notices, Vec::<Value>::new());
}

#[test]
fn the_page_shows_it_and_a_client_over_http_is_told_once() {
    let site = office().serve_program();
    let mut client = WebClient::new(&site.address, "/mcp");
    let mut told = || {
        let notices = notices_of(&client.call("list_categories", json!({})));
        notices.iter().filter(|notice| notice["kind"] == "servers_left_out").count()
    };
    assert_eq!((told(), told()), (1, 0));
    client.until_ready("shop");
    let status = client.answer("execute_tool", json!({ "name": "gateway.status" }));
    let servers = status["servers"].as_array().expect("a list");
    let names: Vec<&str> = servers.iter().filter_map(|server| server["name"].as_str()).collect();
    assert_eq!(names, ["docs", "mail", "shop"], "in order of name");
    let token = site.page_token();
    let reply = crate::web::http(&site.address, "GET", "/ui/api/state", &[("X-Nonet-Token", &token)], "");
    let state: Value = serde_json::from_str(&reply.body).expect("JSON");
    assert_eq!(state["servers"][0]["state"], "needs_config", "{state}");
    assert!(has(&state["servers"][0]["last_error"], WHY), "{state}");
}

#[tokio::test]
async fn a_server_whose_tools_are_all_kept_out_shows_no_category() {
    let tools = json!({ "tools": [{ "name": "buy" }, { "name": "sell" }] });
    let inside = Setup::new()
        .server_with("blocked", tools.clone(), "blocked_tools = ['*']")
        .server("denied", tools.clone())
        .server_with("half", tools, "allowed_tools = ['buy']")
        .server("bare", json!({ "tools": [] }))
        .toml("[policies.never]\ntools = ['denied.*']\npolicy = 'deny'")
        .open()
        .await;
    let categories = inside.answer("list_categories", json!({})).await;
    let names: Vec<&str> = categories["categories"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(names, ["bare", "gateway", "half"], "{categories}");
    let status = json_of(&inside.execute("gateway.status", json!({})).await);
    assert_eq!(status["servers"].as_array().map(Vec::len), Some(4), "{status}");
}
