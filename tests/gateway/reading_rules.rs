//! Profiles and policies for prompts and resources, through every method that reaches them.

use std::{fs, os::unix::fs::symlink, process::Command};

use serde_json::{Map, Value, json};

use crate::{
    client::Client,
    inside::Inside,
    setup::{Setup, eventually, text_of},
};

fn docs() -> Value {
    let link = json!({ "type": "resource_link", "uri": "note://linked", "name": "linked" });
    json!({
        "prompts": [
            { "name": "plan", "text": "Plan.", "arguments": [{ "name": "what" }] },
            { "name": "secret-plan", "text": "Secret." },
        ],
        "resources": [
            { "uri": "note://open", "text": "open" },
            { "uri": "note://secret", "text": "secret" },
            { "uri": "note://linked", "text": "linked", "unlisted": true },
            { "uri": "note://unlisted", "text": "unlisted", "unlisted": true },
        ],
        "templates": [{ "uriTemplate": "page://{name}", "name": "page" }],
        "tools": [
            { "name": "read", "annotations": { "readOnlyHint": true }, "on": { "text": "read" } },
            { "name": "link", "annotations": { "readOnlyHint": true }, "on": { "result": { "content": [link] } } },
        ],
    })
}

async fn library(server: &str, rules: &str) -> Inside {
    let mail = json!({ "tools": [{ "name": "send" }] });
    Setup::new().server_with("docs", docs(), server).server("mail", mail).toml(rules).open().await
}

/// Returns the prompts and URIs that a caller gets: by listing, and by trying everything.
async fn got(inside: &Inside, profile: Option<&str>, rules: &str) -> (Vec<String>, Vec<String>) {
    let caller = profile.map_or_else(|| inside.caller.clone(), |profile| inside.under(profile));
    let gateway = &inside.gateway;
    let page = |page: nonet_core::ListPage, key: &str| {
        page.entries.iter().map(|one| one[key].as_str().expect("a name").to_string()).collect::<Vec<_>>()
    };
    let mut listed = page(gateway.calls.prompts(&caller, None).await.expect("a list"), "name");
    listed.extend(page(gateway.calls.resources(&caller, None).await.expect("a list"), "uri"));
    listed
        .extend(page(gateway.calls.resource_templates(&caller, None).await.expect("a list"), "uriTemplate"));
    let mut reached = Vec::new();
    for prompt in ["plan", "secret-plan"] {
        let wire = format!("docs__{prompt}");
        let by_method = gateway.calls.get_prompt(&caller, &wire, Map::new()).await.is_ok();
        let command = format!("docs/{prompt}");
        let by_skill = inside.call_as(&caller, "use_skill", json!({ "command": command })).await;
        let full = format!("skills.docs/{prompt}");
        let by_name = inside.call_as(&caller, "execute_tool", json!({ "name": full })).await;
        assert_eq!(by_skill["isError"] != true, by_method, "{prompt}: {by_skill}");
        assert_eq!(by_name["isError"] != true, by_method, "{prompt}: {by_name}");
        let skills = inside.call_as(&caller, "use_skill", json!({})).await.to_string();
        assert_eq!(skills.contains(&format!("docs/{prompt}\\\"")), listed.contains(&wire), "{skills}");
        if by_method {
            reached.push(wire);
        }
    }
    for uri in ["note://open", "note://secret", "page://one", "note://linked", "nonet://docs/note://unlisted"]
    {
        let by_method = gateway.calls.read_resource(&caller, uri).await.is_ok();
        let params = json!({ "name": "gateway.read_resource", "params": { "uri": uri } });
        let by_tool = inside.call_as(&caller, "execute_tool", params).await;
        assert_eq!(by_tool["isError"] != true, by_method, "{uri}: {by_tool}");
        let asks = by_tool.to_string().contains("needs_approval");
        assert_eq!(
            asks,
            rules.contains("approve") && uri.starts_with("note://") && uri != "note://linked",
            "{by_tool}"
        );
        assert_eq!(gateway.calls.follow_resource(&caller, uri).await.is_ok(), by_method, "following {uri}");
        if by_method {
            reached.push(uri.into());
        }
    }
    (listed, reached)
}

#[tokio::test]
async fn every_method_keeps_to_the_rules() {
    let (plan, secret_plan) = ("docs__plan", "docs__secret-plan");
    let (open, secret, page) = ("note://open", "note://secret", "page://{name}");
    let unlisted = "nonet://docs/note://unlisted";
    let check = async |server: &str, rules: &str, listed: &[&str], reached: &[&str]| {
        let inside = library(server, rules).await;
        let profile = rules.contains("[profiles.p]").then_some("p");
        let (now_listed, now_reached) = got(&inside, profile, rules).await;
        assert_eq!(now_listed, listed, "listed: {server}\n{rules}");
        assert_eq!(now_reached, reached, "reached: {server}\n{rules}");
    };
    let all = [plan, secret_plan, open, secret, page];
    let read = [plan, secret_plan, open, secret, "page://one"];
    check("", "", &all, &read).await;
    check("unlisted_resources = true", "", &all, &[&read[..], &[unlisted]].concat()).await;
    // Under `max_risk = low`, nothing unlisted is readable, and nothing that the configuration rates as
    // riskier.
    let low = "[profiles.p]\nmax_risk = 'low'";
    check("unlisted_resources = true", low, &all, &read).await;
    check("resources_risk = 'medium'", low, &[plan, secret_plan], &[plan, secret_plan]).await;
    check("prompts_risk = 'high'", low, &all[2..], &read[2..]).await;
    check("", "[profiles.p]\ncategories = ['mail']", &[], &[]).await;
    check("", "[profiles.p]\nonly = ['docs.read']", &[], &[]).await;
    check("", "[profiles.p]\nonly = ['docs.read', 'docs.note://open']", &[open], &[open]).await;
    let some = "[profiles.p]\ndeny = ['docs.*secret*', 'resources.docs/page:*']";
    check("", some, &[plan, open], &[plan, open]).await;
    check("", "[profiles.p]\ndeny = ['docs.*']", &[], &[]).await;
    check(
        "",
        "[policies.no]\ntools = ['*secret*']\npolicy = 'deny'",
        &[plan, open, page],
        &[plan, open, "page://one"],
    )
    .await;
    check("blocked_tools = ['*secret*']", "", &[plan, open, page], &[plan, open, "page://one"]).await;
    // Items that need approval are listed, but refused by methods that cannot ask.
    let ask = "[policies.ask]\ntools = ['skills.docs/*', 'resources.docs/note:*']\npolicy = 'approve'";
    check("", ask, &all, &["page://one"]).await;
}

#[tokio::test]
async fn a_session_reads_what_its_results_link_to() {
    let inside = library(
        "",
        "[profiles.p]\nmax_risk = 'low'\nonly = ['docs.link']\n[profiles.q]\ndeny = ['*linked*']\n",
    )
    .await;
    for (profile, is_open) in [("p", true), ("q", false)] {
        let caller = inside.under(profile);
        let caller = nonet_state::session::Caller { lasting: true, ..caller };
        let read = async |uri: &str| inside.gateway.calls.read_resource(&caller, uri).await.is_ok();
        assert!(!read("note://linked").await);
        inside.call_as(&caller, "execute_tool", json!({ "name": "docs.link" })).await;
        assert_eq!(read("note://linked").await, is_open);
        assert_eq!(read("nonet://docs/note://linked").await, is_open);
        assert!(!read("nonet://docs/note://unlisted").await);
        let other = inside.under(profile);
        assert!(
            inside.gateway.calls.read_resource(&other, "note://linked").await.is_err(),
            "another session's link"
        );
    }
    let why = inside.gateway.calls.read_resource(&inside.caller, "nonet://docs/note://unlisted").await;
    let why = why.expect_err("it is unlisted").message.to_string();
    assert!(why.contains("servers.docs.unlisted_resources = true"), "{why}");
}

#[test]
fn what_takes_the_place_of_a_skill_neither_hangs_nor_leaks() {
    let setup = Setup::new().gateway("skills = ['skills']");
    let root = setup.path("skills");
    let make = |name: &str| {
        fs::create_dir_all(root.join(name)).expect("a folder");
        root.join(name).join("SKILL.md")
    };
    fs::write(setup.path("secret"), "s3cr3t").expect("a file");
    fs::write(make("fine"), "---\nname: fine\n---\nDo it.").expect("a file");
    symlink(setup.path("secret"), make("stolen")).expect("a link");
    symlink("/dev/zero", make("endless")).expect("a link");
    assert!(Command::new("mkfifo").arg(make("hanging")).status().expect("mkfifo runs").success());
    assert!(Command::new("mkfifo").arg(root.join("fine/pipe")).status().expect("mkfifo runs").success());
    symlink(setup.path("secret"), root.join("fine/link")).expect("a link");
    let mut client = setup.start_program();
    let listed = client.answer("use_skill", json!({}));
    assert_eq!(listed["total"], 1, "{listed}");
    for command in ["stolen", "endless", "hanging"] {
        assert_eq!(client.call("use_skill", json!({ "command": command }))["isError"], true, "{command}");
    }
    for file in ["pipe", "link"] {
        let given = client.call("use_skill", json!({ "command": "fine", "file": file }));
        assert!(given["isError"] == true && !given.to_string().contains("s3cr3t"), "{given}");
    }
    let found = client.answer("search_tools", json!({ "query": "fine" }));
    assert!(found.to_string().contains("skills.fine") && !found.to_string().contains("s3cr3t"), "{found}");
    assert!(text_of(&client.call("use_skill", json!({ "command": "fine" }))).contains("Do it."));
    // Each is reported once.
    for folder in ["stolen", "endless", "hanging"] {
        eventually("it is logged", || {
            (client.stderr().matches(&format!("skills/{folder} is left out")).count() == 1).then_some(())
        });
    }
}

/// Replaces a file with something else: a link to a device, a pipe, a folder, or a huge sparse file.
fn odd(client: &Client, name: &str, kind: &str) {
    let file = client.folder.path().join(name);
    let _ = fs::remove_file(&file);
    let _ = fs::remove_dir(&file);
    match kind {
        "device" => symlink("/dev/zero", &file).expect("a link"),
        "pipe" => assert!(Command::new("mkfifo").arg(&file).status().expect("mkfifo runs").success()),
        "folder" => fs::create_dir(&file).expect("a folder"),
        _ => fs::File::create(&file).expect("a file").set_len(1 << 40).expect("a sparse file"),
    }
}

#[test]
fn a_file_of_the_configuration_that_is_none_changes_nothing() {
    let tools = json!({ "tools": [{ "name": "look", "on": { "text": "here" } }] });
    for (name, kind) in ["servers.toml", "secrets.env"]
        .into_iter()
        .flat_map(|name| ["device", "pipe", "folder", "huge"].map(|kind| (name, kind)))
    {
        let mut client = Setup::new().server("shop", tools.clone()).start_program();
        client.until_ready("shop");
        odd(&client, name, kind);
        if name == "servers.toml" {
            let notice = client.until_notice("config_faulty");
            assert!(
                notice["message"].as_str().is_some_and(|why| why.contains("servers.toml")),
                "{kind}: {notice}"
            );
        }
        assert_eq!(text_of(&client.execute("shop.look", json!({}))), "here", "{name} {kind}");
        let output = crate::client::command(client.folder.path()).arg("check").output().expect("nonet runs");
        assert_eq!(output.status.code(), Some(2), "{name} {kind}: {output:?}");
    }
}

#[test]
fn a_document_that_is_no_file_fails_its_server_only() {
    for kind in ["device", "pipe", "folder", "huge"] {
        let setup = Setup::new().server_of("rest", "openapi = 'api.json'\nbase_url = 'http://127.0.0.1:1'");
        fs::write(setup.path("api.json"), "{}").expect("a file");
        let mut client = setup.start_silently();
        odd(&client, "api.json", kind);
        client.initialize("2025-06-18", json!({}));
        let server = client.until("rest", "down");
        assert!(
            server["last_error"].as_str().is_some_and(|why| why.contains("api.json")),
            "{kind}: {server}"
        );
    }
}
