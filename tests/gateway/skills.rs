//! `use_skill`: skills from configured folders, and servers' prompts.

use std::fs;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    inside::Inside,
    setup::{Setup, text_of},
};

async fn library() -> Inside {
    let setup = Setup::new();
    let folder = setup.path("skills/release");
    fs::create_dir_all(folder.join("parts")).expect("a folder");
    let text = "---\nname: release-notes\ndescription: Writes the notes of a release\n---\n# Collect the changes\nFor $ARGUMENTS.\n";
    fs::write(folder.join("SKILL.md"), text).expect("a file");
    fs::write(folder.join("parts/style.md"), "Short sentences.").expect("a file");
    fs::write(setup.path("skills/secret.txt"), "secret").expect("a file");
    let plain = setup.path("skills/plain");
    fs::create_dir_all(&plain).expect("a folder");
    fs::write(plain.join("SKILL.md"), "No front matter at all.").expect("a file");
    let greet = json!({
        "name": "greet",
        "description": "Greets a person by name",
        "arguments": [{ "name": "who", "required": true }, { "name": "how" }],
        "text": "Say hello to {{who}}.",
    });
    setup
        .server("folk", json!({ "tools": [{ "name": "look" }], "prompts": [greet] }))
        .gateway("skills = ['skills', 'no-such-folder']")
        .open()
        .await
}

#[tokio::test]
async fn without_a_command_the_skills_are_listed() {
    let inside = library().await;
    insta::assert_json_snapshot!(inside.answer("use_skill", json!({})).await);
}

#[tokio::test]
async fn a_query_finds_the_best() {
    let inside = library().await;
    let found = inside.answer("use_skill", json!({ "query": "greet somebody" })).await;
    assert_eq!(found["skills"][0]["name"], "folk/greet", "{found}");
    let found = inside.answer("use_skill", json!({ "query": "notes for a release" })).await;
    assert_eq!(found["skills"][0]["name"], "release-notes", "{found}");
    let found = inside.answer("use_skill", json!({ "query": "xylophone" })).await;
    assert_eq!(found["skills"], json!([]), "{found}");
    assert!(found["hint"].is_string(), "{found}");
}

#[tokio::test]
async fn a_skill_is_its_text_with_the_note_to_follow_it() {
    let inside = library().await;
    for command in ["release-notes", "/release-notes", "Release_Notes", " release-notes "] {
        let result = inside.call("use_skill", json!({ "command": command, "arguments": "v2" })).await;
        let text = text_of(&result);
        assert!(text.starts_with("Follow these instructions"), "{text}");
        assert!(text.contains("# Collect the changes\nFor v2."), "{text}");
        assert!(text.contains("parts/style.md") && !text.contains("description:"), "{text}");
    }
    let bare = inside.call("use_skill", json!({ "command": "release-notes" })).await;
    assert!(text_of(&bare).contains("\nFor ."), "{bare}");
    let result = inside.call("use_skill", json!({ "command": "plain" })).await;
    assert!(text_of(&result).contains("No front matter at all."), "{result}");
}

#[tokio::test]
async fn a_file_beside_a_skill_is_read_and_none_outside_of_it() {
    let inside = library().await;
    let file = |file: &str| json!({ "command": "release-notes", "file": file });
    assert_eq!(text_of(&inside.call("use_skill", file("parts/style.md")).await), "Short sentences.");
    for outside in
        ["../secret.txt", "parts/../../secret.txt", "/etc/hostname", "..\\secret.txt", "missing.md", "parts"]
    {
        let result = inside.call("use_skill", file(outside)).await;
        assert_eq!(result["isError"], true, "{outside}: {result}");
        assert!(!result.to_string().contains("\"secret\""), "{result}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_out_of_the_folder_is_not_followed() {
    let inside = library().await;
    let folder = inside.folder.path().join("skills");
    std::os::unix::fs::symlink(folder.join("secret.txt"), folder.join("release/link.txt")).expect("a link");
    let result = inside.call("use_skill", json!({ "command": "release-notes", "file": "link.txt" })).await;
    assert_eq!(result["isError"], true, "{result}");
}

#[tokio::test]
async fn a_servers_prompt_is_a_skill() {
    let inside = library().await;
    let arguments = json!({ "command": "folk/greet", "arguments": { "who": "Ada" } });
    let result = inside.call("use_skill", arguments).await;
    assert!(text_of(&result).contains("Say hello to Ada."), "{result}");
    let result =
        inside.call("use_skill", json!({ "command": "/folk/greet", "arguments": { "who": 7 } })).await;
    assert!(text_of(&result).contains("Say hello to 7."), "prompts take text alone: {result}");
    let fault = inside.fault("use_skill", json!({ "command": "folk/greet" })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("who")), "{fault}");
}

#[tokio::test]
async fn an_unknown_skill_is_answered_with_the_nearest() {
    let inside = library().await;
    let fault = inside.fault("use_skill", json!({ "command": "release-note" })).await;
    assert_eq!(
        (&fault["code"], &fault["did_you_mean"][0]),
        (&json!("not_found"), &json!("release-notes")),
        "{fault}"
    );
}

#[tokio::test]
async fn a_skill_that_is_added_meanwhile_is_there() {
    let inside = library().await;
    let folder = inside.folder.path().join("skills/new");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("SKILL.md"), "---\nname: brand-new\n---\nDo it.").expect("a file");
    let list = inside.answer("use_skill", json!({})).await;
    let names: Vec<&Value> =
        list["skills"].as_array().expect("a list").iter().map(|skill| &skill["name"]).collect();
    assert!(names.contains(&&json!("brand-new")), "{list}");
}

#[tokio::test]
async fn no_skills_at_all_is_told() {
    let inside = Setup::new().open().await;
    let list = inside.answer("use_skill", json!({})).await;
    assert_eq!((&list["total"], list["hint"].is_string()), (&json!(0), true), "{list}");
}

#[tokio::test]
async fn a_prompt_without_what_it_needs_says_what_that_is() {
    let inside = library().await;
    let fault = inside.fault("use_skill", json!({ "command": "folk/greet" })).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    let call = &fault["details"]["corrected_call"]["arguments"];
    assert_eq!(*call, json!({ "command": "folk/greet", "arguments": { "who": "<who>" } }), "{fault}");
    let fault = inside.fault("use_skill", json!({ "command": "release-note" })).await;
    assert_eq!(fault["next_step"]["arguments"], json!({ "command": "release-notes" }), "{fault}");
}

#[tokio::test]
async fn a_skill_is_called_as_execute_tool_would_read_it() {
    let inside = library().await;
    for call in [
        json!({ "command": "/release-notes v2" }),
        json!({ "name": "release-notes", "args": "v2" }),
        json!({ "command": "skills.release-notes  v2 " }),
    ] {
        let result = inside.call("use_skill", call.clone()).await;
        assert!(text_of(&result).contains("# Collect the changes\nFor v2."), "{call}: {result}");
    }
    for call in [
        json!({ "command": "/folk/greet Ada" }),
        json!({ "command": "folk/greet", "arguments": "{\"who\": \"Ada\"}" }),
        json!({ "command": "folk/greet", "arguments": { "Who": "Ada" } }),
        json!({ "command": "folk/greet", "who": "Ada" }),
    ] {
        let result = inside.call("use_skill", call.clone()).await;
        assert!(text_of(&result).contains("Say hello to Ada."), "{call}: {result}");
    }
    let fault = inside.fault("use_skill", json!({ "command": "/nothing at all" })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
}

/// An entry of a server's skill, and its files as resources. `announced` is the text that the entry is about.
fn offered(announced: &str, given: &str) -> Value {
    let uri = "skill://acme/refunds/SKILL.md";
    let form = "skill://acme/refunds/parts/form.md";
    let digest = |text: &str| {
        let hash = Sha256::digest(text.as_bytes());
        format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let file = |uri: &str, text: &str| json!({ "uri": uri, "digest": digest(text), "size": text.len() });
    json!({
        "tools": [{ "name": "look" }],
        "skills": [{
            "uri": uri,
            "frontmatter": { "name": "refunds", "description": "Gives money back to a customer" },
            "resources": [file(uri, announced), file(form, "A form.")],
        }],
        "resources": [
            { "uri": uri, "text": given, "unlisted": true },
            { "uri": form, "text": "A form.", "unlisted": true },
            { "uri": "skill://acme/refunds/secret.md", "text": "unlisted", "unlisted": true },
        ],
    })
}

const REFUNDS: &str = "---\nname: refunds\ndescription: Gives money back to a customer\n---\nAsk for the receipt of $ARGUMENTS.\n";

#[tokio::test]
async fn skills_of_servers_are_found_and_used_as_their_entries_announce_them() {
    let inside = Setup::new().server("shop", offered(REFUNDS, REFUNDS)).open().await;
    let found = inside.answer("search_tools", json!({ "query": "give a customer money back" })).await;
    assert_eq!(found["results"][0]["name"], "skills.shop/refunds", "{found}");
    let listed = inside.answer("use_skill", json!({})).await;
    assert_eq!(listed["skills"][0]["name"], "shop/refunds", "{listed}");
    let used = inside.call("use_skill", json!({ "command": "shop/refunds", "arguments": "order 7" })).await;
    assert!(text_of(&used).contains("Ask for the receipt of order 7."), "{used}");
    assert!(
        text_of(&used).contains("parts/form.md") && text_of(&used).contains("skill `shop/refunds`"),
        "{used}"
    );
    let file = inside.call("use_skill", json!({ "command": "shop/refunds", "file": "parts/form.md" })).await;
    assert_eq!(text_of(&file), "A form.");
    let called = inside.execute("skills.shop/refunds", json!({ "arguments": "order 8" })).await;
    assert!(text_of(&called).contains("receipt of order 8"), "{called}");
    for file in ["secret.md", "../other/SKILL.md", ""] {
        let fault = inside.fault("use_skill", json!({ "command": "shop/refunds", "file": file })).await;
        assert_eq!(fault["code"], "not_found", "{file}: {fault}");
    }
}

#[tokio::test]
async fn a_skill_that_is_not_as_announced_is_not_used() {
    let evil = REFUNDS.replace("receipt", "ruin!!!");
    let longer = format!("{REFUNDS}More.");
    let lie = REFUNDS.replace("customer", "stranger");
    for (announced, given, part) in [
        (REFUNDS, &evil[..], "SHA-256"),
        (REFUNDS, &longer, "the server announced"),
        (&lie, &lie, "`description`"),
    ] {
        let inside = Setup::new().server("shop", offered(announced, given)).open().await;
        let fault = inside.fault("use_skill", json!({ "command": "shop/refunds" })).await;
        let message = fault["message"].as_str().expect("a message");
        assert!(message.contains(part) && message.contains("is not used"), "{part}: {fault}");
    }
}

#[test]
fn skills_of_folders_are_served_by_the_extension() {
    let setup = Setup::new().gateway("skills = ['skills']\n[profiles.none]\ndeny = ['skills.*']");
    let folder = setup.path("skills/pdf/parts");
    fs::create_dir_all(&folder).expect("a folder");
    let text = "---\nname: pdf\ndescription: Fills forms\n---\nDo it.\n";
    fs::write(setup.path("skills/pdf/SKILL.md"), text).expect("a file");
    fs::write(folder.join("form.md"), "A form.").expect("a file");
    let mut client = setup.start_program_silently();
    let answer = client.initialize("2025-11-25", json!({}));
    let extension = &answer["result"]["capabilities"]["extensions"]["io.modelcontextprotocol/skills"];
    assert_eq!(*extension, json!({ "directoryRead": true }), "{answer}");
    let list = client.request("skills/list", json!({}))["result"].take();
    assert_eq!(
        (&list["ttlMs"], &list["skills"][0]["uri"]),
        (&Value::Null, &json!("skill://nonet/pdf/SKILL.md"))
    );
    let modern = client.beside(&[]).modern("skills/list", json!({}), json!({}))["result"].take();
    assert_eq!((&modern["skills"], &modern["resultType"]), (&list["skills"], &json!("complete")));
    assert_eq!((&modern["ttlMs"], &modern["cacheScope"]), (&json!(10_000), &json!("private")));
    let got = client.request("skills/get", json!({ "uri": "skill://nonet/pdf/SKILL.md" }))["result"].take();
    assert_eq!(got["skill"], list["skills"][0]);
    let read =
        client.request("resources/read", json!({ "uri": "skill://nonet/pdf/SKILL.md" }))["result"].take();
    assert_eq!(read["contents"][0]["text"], text);
    let inside =
        client.request("resources/directory/read", json!({ "uri": "skill://nonet/pdf" }))["result"].take();
    assert_eq!(
        inside["resources"][1],
        json!({ "uri": "skill://nonet/pdf/parts", "name": "parts", "mimeType": "inode/directory" })
    );
    for (method, uri) in [
        ("skills/get", "skill://nonet/nothing/SKILL.md"),
        ("resources/read", "skill://nonet/pdf/../../servers.toml"),
        ("resources/directory/read", "skill://nonet/pdf/SKILL.md"),
    ] {
        let error = client.request(method, json!({ "uri": uri }))["error"].take();
        assert_eq!(error["code"], -32602, "{method} {uri}: {error}");
    }
    let mut denied = client.beside(&["--profile", "none"]);
    denied.shake_hands(json!({}));
    assert_eq!(denied.request("skills/list", json!({}))["result"]["skills"], json!([]));
}
