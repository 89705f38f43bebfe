//! Finding tools: search, categories, pages, whole definitions.

use serde_json::{Value, json};

use crate::{
    inside::{Inside, eventually},
    setup::{PATIENCE, Setup, json_of},
};

fn tool(name: &str, description: &str, properties: Value) -> Value {
    json!({ "name": name, "description": description, "input_schema": { "type": "object", "properties": properties } })
}

async fn office() -> Inside {
    let text = json!({ "type": "string" });
    let files = json!({ "instructions": "Reads and writes files on this machine. And more.", "tools": [
        tool("read_file", "Reads a file from the disk", json!({ "path": text })),
        tool("write_file", "Writes text into a file", json!({ "path": text, "content": text })),
        tool("delete_file", "Deletes a file", json!({ "path": text })),
    ] });
    let mail = json!({ "tools": [
        tool("send", "Sends an e-mail", json!({ "to": text, "subject": text })),
        tool("inbox", "Lists what has arrived", json!({ "unread": { "type": "boolean" } })),
    ] });
    Setup::new()
        .server("files", files)
        .server_with("mail", mail, "description = 'Electronic mail'\ntags = ['people']")
        .server("many", json!({ "tool_count": 45 }))
        .toml("[servers.mail.tools.send]\naliases = ['Brief verschicken']")
        .toml("[categories.writing]\ndescription = 'All that writes'\ntools = ['*.write_*', 'mail.send']")
        .open()
        .await
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect()
}

#[tokio::test]
async fn a_search_answers_in_a_few_lines() {
    let inside = office().await;
    let found =
        inside.golden("search_tools", json!({ "query": "read a file from disk", "category": "files" })).await;
    insta::assert_json_snapshot!(found);
}

#[tokio::test]
async fn a_search_that_comes_before_the_first_index_finds_what_is_there() {
    let inside = Setup::new().open_at_once();
    let found = inside.answer("search_tools", json!({ "query": "gateway.fetch_result" })).await;
    assert_eq!(inside.gateway.publisher.snapshot().generation, 0, "it came first");
    assert_eq!(names(&found["results"]).first(), Some(&"gateway.fetch_result"), "{found}");
}

#[tokio::test]
async fn a_search_finds_by_name_words_parameters_and_aliases() {
    let inside = office().await;
    for (query, expected) in [
        ("files.write_file", "files.write_file"),
        ("write_file", "files.write_file"),
        ("writes text into a file", "files.write_file"),
        ("e-mail with a subject", "mail.send"),
        ("Brief verschicken", "mail.send"),
        ("unread", "mail.inbox"),
        ("wriet_fiel", "files.write_file"),
    ] {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        assert_eq!(names(&found["results"]).first(), Some(&expected), "{query}: {found}");
    }
}

#[tokio::test]
async fn filters_work_inside_the_search_so_that_a_list_is_still_full() {
    let reads = json!({ "readOnlyHint": true });
    let wipes = json!({ "destructiveHint": true });
    let things = |count: usize, annotations: &Value| -> Vec<Value> {
        let thing = |n| json!({ "name": format!("thing_{n:03}"), "description": "moves a thing", "annotations": annotations });
        (0..count).map(thing).collect()
    };
    let inside = Setup::new()
        .server("crowd", json!({ "tools": things(300, &wipes) }))
        .server("few", json!({ "tools": things(12, &reads) }))
        .server_with("hidden", json!({ "tools": things(20, &reads) }), "blocked_tools = ['*']")
        .toml("[profiles.narrow]\ncategories = ['few']")
        .open()
        .await;
    let of = |found: &Value| -> Vec<String> {
        let all = names(&found["results"]).into_iter();
        all.filter_map(|name| Some(name.split_once('.')?.0.to_owned())).collect()
    };
    for filter in [json!({ "category": "few" }), json!({ "max_risk": "low" })] {
        let mut arguments = json!({ "query": "move a thing", "limit": 10 });
        arguments.as_object_mut().expect("an object").extend(filter.as_object().expect("an object").clone());
        let found = inside.answer("search_tools", arguments).await;
        let servers = of(&found);
        assert_eq!(servers.iter().filter(|server| *server == "few").count(), 10, "{filter}: {found}");
        assert!(!servers.iter().any(|server| server == "crowd" || server == "hidden"), "{filter}: {found}");
    }
    let narrow = inside.under("narrow");
    let arguments = json!({ "query": "move a thing", "limit": 10 });
    let found = json_of(&inside.call_as(&narrow, "search_tools", arguments).await);
    assert!(of(&found)[..10].iter().all(|server| server == "few"), "{found}");
    assert!(!found.to_string().contains("crowd"), "{found}");
    assert!(
        inside
            .gateway
            .publisher
            .snapshot()
            .index
            .documents()
            .iter()
            .all(|document| &*document.group != "hidden")
    );
}

#[tokio::test]
async fn a_search_says_as_much_as_was_asked_for() {
    let inside = office().await;
    let find = async |more: Value| {
        let mut arguments = json!({ "query": "generated tool" });
        arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        inside.answer("search_tools", arguments).await
    };
    assert_eq!(find(json!({ "category": "many" })).await["results"].as_array().map(Vec::len), Some(5));
    let found = find(json!({ "limit": 12, "category": "many", "detail": "name" })).await;
    assert_eq!(found["results"].as_array().map(Vec::len), Some(12), "{found}");
    assert!(found["results"][0].get("description").is_none(), "{found}");
    let found = find(json!({ "limit": 1, "detail": "full", "category": "many" })).await;
    assert!(found["results"][0]["input_schema"]["properties"]["value"].is_object(), "{found}");
    assert!(!found.to_string().contains("null"), "empty fields are left out: {found}");
}

#[tokio::test]
async fn a_sure_hit_is_whole_and_the_others_are_names() {
    let inside = office().await;
    let find = async |more: Value| {
        let mut arguments = json!({ "query": "files.write_file" });
        arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        inside.answer("search_tools", arguments).await
    };
    let found = find(json!({ "limit": 3 })).await;
    assert_eq!(found["confidence"], "high", "{found}");
    assert!(found.get("total").is_none(), "{found}");
    let hits = found["results"].as_array().expect("a list");
    assert_eq!(hits.len(), 3, "{found}");
    let first = &hits[0];
    assert_eq!(first["signature"], "(path?: string, content?: string)", "{found}");
    assert!(first["description"].is_string() && first["risk"].is_string(), "{found}");
    assert!(first.get("score").is_none(), "{found}");
    for other in &hits[1..] {
        assert_eq!(*other, json!({ "name": other["name"] }), "{found}");
    }
    let found = find(json!({ "limit": 3, "detail": "signature" })).await;
    assert!(
        found["results"][1]["signature"].is_string() && found["results"][1].get("score").is_none(),
        "{found}"
    );
    let found = find(json!({ "limit": 3, "detail": "full" })).await;
    assert!(
        found["results"][1]["score"].is_number() && found["results"][1]["input_schema"].is_object(),
        "{found}"
    );
}

#[tokio::test]
async fn a_text_for_models_is_no_description_of_a_server() {
    let audience = "# Everything\n\nAudience: These instructions are written for an LLM or autonomous agent \
                    integrating with the server. Use it only for tests, and never twice for one thing. \
                    Prefer `get-sum` where sums are asked for, and `echo` for everything else that is text. \
                    Report troubles with the steps that led there.";
    let named = |names: &[&str]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
    let words =
        "Manages the archive of this town with its maps and its unusually complete registers. ".repeat(4);
    let inside = Setup::new()
        .server("all", json!({ "instructions": audience, "tools": named(&["echo", "get-sum"]) }))
        .server("archive", json!({ "instructions": words, "tools": named(&["look"]) }))
        .open()
        .await;
    let all = inside.answer("list_categories", json!({})).await;
    let about = |name: &str| {
        let mut list = all["categories"].as_array().expect("a list").iter();
        list.find(|one| one["name"] == name).and_then(|one| one["description"].as_str()).map(str::to_owned)
    };
    assert_eq!(about("all").as_deref(), Some("echo, get-sum"), "{all}");
    let archive = about("archive").expect("a description");
    let shown = archive.strip_suffix("...").expect("it is cut");
    assert!(words.starts_with(&format!("{shown} ")), "it is cut after a word: {archive}");
}

#[tokio::test]
async fn an_abbreviated_category_or_tag_is_found_by_its_meaning() {
    let tools = json!({ "tools": [tool("get_pods", "Lists the pods of a cluster", json!({}))] });
    let inside = Setup::new().server_with("k8s", tools, "tags = ['db']").open().await;
    let search = |more: Value| {
        let mut arguments = json!({ "query": "list pods", "max_risk": "high" });
        arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        arguments
    };
    for (wrong, right) in [
        (json!({ "category": "kubernetes" }), json!({ "category": "k8s" })),
        (json!({ "tags": ["database"] }), json!({ "tags": ["db"] })),
    ] {
        let fault = inside.fault("search_tools", search(wrong.clone())).await;
        assert_eq!(fault["code"], "not_found", "{wrong}: {fault}");
        let step = &fault["next_step"];
        assert_eq!((&step["tool"], &step["arguments"]), (&json!("search_tools"), &search(right)), "{fault}");
        let found = inside.answer("search_tools", step["arguments"].clone()).await;
        assert_eq!(found["results"][0]["name"], "k8s.get_pods", "{found}");
    }
    let fault = inside.fault("browse_category", json!({ "category": "kubernetes" })).await;
    assert_eq!(fault["next_step"]["arguments"], json!({ "category": "k8s" }), "{fault}");
    let fault = inside.fault("search_tools", search(json!({ "tags": ["zebra"] }))).await;
    assert!(fault.get("did_you_mean").is_none() && fault.get("next_step").is_none(), "{fault}");
}

#[tokio::test]
async fn a_search_without_words_browses() {
    let inside = office().await;
    let page = inside.answer("search_tools", json!({ "category": "mail" })).await;
    assert_eq!(names(&page["tools"]), ["mail.inbox", "mail.send"]);
    let all = inside.answer("search_tools", json!({})).await;
    assert_eq!(all, inside.answer("list_categories", json!({})).await);
}

#[tokio::test]
async fn a_search_that_finds_nothing_says_what_to_do() {
    let inside = office().await;
    let found = inside.answer("search_tools", json!({ "query": "qqqq zzzz" })).await;
    assert_eq!(found["confidence"], "none", "{found}");
    assert!(found["hint"].is_string(), "{found}");
    let fault = inside.fault("search_tools", json!({ "query": "x", "category": "no-such" })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
}

#[tokio::test]
async fn the_length_of_an_answer_follows_its_confidence() {
    let servers = ["one", "two", "three", "four", "five", "six"];
    let inside = servers
        .into_iter()
        .fold(Setup::new(), |setup, name| {
            let tools = json!({ "tools": [tool("paint", &format!("Paints wall {name}"), json!({}))] });
            setup.server(name, tools)
        })
        .open()
        .await;
    let whole = async |query: &str, detail: Value| {
        let found = inside.answer("search_tools", json!({ "query": query, "detail": detail })).await;
        let results = found["results"].as_array().expect("results");
        let is_whole = |hit: &&Value| hit.get("description").is_some() && hit.get("signature").is_some();
        (found["confidence"].clone(), results.iter().filter(is_whole).count(), results.len())
    };
    assert_eq!(whole("one.paint", Value::Null).await, (json!("high"), 1, 5));
    assert_eq!(whole("paint a wall", Value::Null).await, (json!("medium"), 2, 5));
    assert_eq!(whole("fly a wall to the moon and the stars", Value::Null).await, (json!("none"), 0, 5));
    assert_eq!(whole("fly a wall to the moon and the stars", json!("signature")).await.1, 5);
    let far = json!({ "query": "fly a wall to the moon and the stars" });
    let hint = inside.answer("search_tools", far).await["hint"].clone();
    assert!(hint.as_str().is_some_and(|hint| hint.contains("Try once more in other words")), "{hint}");
}

#[tokio::test]
async fn tools_of_twin_servers_are_one_hit() {
    let files = json!({ "tools": [
        tool("read_file", "Reads a file from the disk", json!({})),
        tool("write_file", "Writes a file", json!({})),
    ] });
    let inside = Setup::new().server("home", files.clone()).server("work", files).open().await;
    let found = inside.answer("search_tools", json!({ "query": "read a file from the disk" })).await;
    assert_eq!(found["results"][0]["name"], "home.read_file", "{found}");
    assert_eq!(found["results"][0]["also"], json!(["work.read_file"]), "{found}");
    assert!(!names(&found["results"]).contains(&"work.read_file"), "{found}");
    let named = inside.answer("search_tools", json!({ "query": "work read file" })).await;
    assert_eq!(named["results"][0]["name"], "work.read_file", "{named}");
}

#[tokio::test]
async fn a_skill_or_an_app_that_fits_is_a_hit() {
    let setup = Setup::new();
    let folder = setup.path("skills/release-notes");
    std::fs::create_dir_all(&folder).expect("a folder");
    let skill = "---\nname: release-notes\ndescription: Writes the release notes of a version\n---\nDo it.\n";
    std::fs::write(folder.join("SKILL.md"), skill).expect("a skill");
    let prompts =
        json!([{ "name": "review", "description": "Reviews a pull request", "text": "Review it." }]);
    let inside = setup
        .gateway(&format!("skills = ['{}']", folder.parent().expect("a folder").display()))
        .server("code", json!({ "tools": [{ "name": "diff" }], "prompts": prompts }))
        .toml("[apps.weekly]\ndescription = 'Sends the weekly report'\ntool = 'code.diff'")
        .open()
        .await;
    for (query, tool, arguments) in [
        ("write release notes", "use_skill", json!({ "command": "release-notes" })),
        ("review the pull request", "use_skill", json!({ "command": "code/review" })),
        ("send my weekly report", "call_app", json!({ "app_id": "weekly" })),
    ] {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        let calls = found["results"].as_array().into_iter().flatten().map(|hit| &hit["call"]);
        let call = json!({ "tool": tool, "arguments": arguments });
        assert!(calls.take(2).any(|own| *own == call), "{query}: {found}");
    }
}

#[tokio::test]
async fn a_name_that_is_like_nothing_is_not_likened() {
    let inside = office().await;
    let fault = inside.fault("get_tool", json!({ "name": "nope.nope" })).await;
    assert_eq!(fault["code"], "unknown_tool", "{fault}");
    assert!(fault.get("did_you_mean").is_none(), "{fault}");
    assert_eq!(fault["next_step"]["tool"], "search_tools", "{fault}");
}

#[tokio::test]
async fn a_meta_tool_behind_execute_tool_is_answered_with_the_call_that_was_meant() {
    let inside = office().await;
    for name in ["search_tools", "mcp__nonet__search_tools"] {
        let call = json!({ "name": name, "params": { "query": "mail" } });
        let fault = inside.fault("execute_tool", call).await;
        let meant = json!({ "tool": "search_tools", "arguments": { "query": "mail" } });
        assert_eq!(fault["next_step"], meant, "{fault}");
    }
}

#[tokio::test]
async fn descriptions_are_read_as_prose() {
    let docstring = "Reads a log.\n\n    Args:\n        path: where it is\n    ";
    let script = json!({
        "instructions": "# Logs\n\n**Reads** logs, see [the manual](https://example.com).\n\n- fast",
        "tools": [tool("read", docstring, json!({}))],
    });
    let inside = Setup::new().server("logs", script).server("plain", json!({ "tool_count": 5 })).open().await;
    let whole = inside.answer("get_tool", json!({ "name": "logs.read" })).await;
    assert_eq!(whole["description"], "Reads a log.\n\nArgs:\n    path: where it is", "{whole}");
    let all = inside.answer("list_categories", json!({})).await;
    let about = |name: &str| {
        let list = all["categories"].as_array().expect("a list").iter();
        list.clone().find(|one| one["name"] == name).map(|one| one["description"].clone())
    };
    assert_eq!(about("logs"), Some(json!("Reads logs, see the manual. fast")));
    assert_eq!(about("plain"), Some(json!("tool_0000, tool_0002, tool_0004 and 2 more")));
}

#[tokio::test]
async fn the_instructions_of_a_server_come_whole_and_once_in_a_session() {
    let long = "Give absolute paths. ".repeat(300);
    let tools = json!([tool("read", "Reads a file", json!({})), tool("write", "Writes a file", json!({}))]);
    let inside = Setup::new()
        .server("files", json!({ "instructions": long, "tools": tools }))
        .server("plain", json!({ "tool_count": 1 }))
        .toml("[profiles.one]\n[profiles.two]\n[profiles.three]\n[profiles.blind]\ndeny = ['files.*']")
        .open()
        .await;
    let load = json!({ "name": "gateway.load_tools", "params": { "category": "files" } });
    let both = json!({ "names": ["files.read", "files.write"] });
    // Each is the first in its session.
    for (profile, meta_tool, arguments, place) in [
        ("one", "browse_category", json!({ "category": "files" }), "/instructions"),
        ("two", "get_tool", both.clone(), "/tools/0/instructions"),
        ("three", "execute_tool", load.clone(), "/tools/0/instructions"),
    ] {
        let mut session = inside.under(profile);
        session.lasting = true;
        let ask = async |meta_tool, arguments: &Value| {
            json_of(&inside.call_as(&session, meta_tool, arguments.clone()).await)
        };
        let first = ask(meta_tool, &arguments).await;
        let text = first.pointer(place).and_then(Value::as_str).unwrap_or_default();
        assert!(text.starts_with("Give absolute paths. Give"), "{meta_tool}: {first}");
        assert!((3_990..=4_003).contains(&text.chars().count()), "{}", text.chars().count());
        assert_eq!(first.to_string().matches("instructions").count(), 1, "{meta_tool}: {first}");
        for (meta_tool, arguments) in [
            ("browse_category", &json!({ "category": "files" })),
            ("search_tools", &json!({ "category": "files" })),
            ("get_tool", &both),
            ("get_tool", &json!({ "name": "plain.tool_0000" })),
            ("execute_tool", &load),
        ] {
            let again = ask(meta_tool, arguments).await;
            assert!(!again.to_string().contains("instructions"), "{meta_tool}: {again}");
        }
    }
    let blind = inside.under("blind");
    let page = inside.call_as(&blind, "browse_category", json!({ "category": "files" })).await;
    assert!(!page.to_string().contains("absolute"), "{page}");
}

#[tokio::test]
async fn a_resource_that_a_result_links_to_can_be_read_by_the_nine() {
    let link = json!({ "type": "resource_link", "uri": "note://linked", "name": "linked" });
    let script = json!({
        "tools": [{ "name": "find", "on": { "result": { "content": [link] } } }],
        "resources": [{ "uri": "note://linked", "text": "what it says", "unlisted": true }],
    });
    let inside = Setup::new().server("notes", script).open().await;
    let found = inside.execute("notes.find", json!({})).await;
    let read = json!({ "uri": found["content"][0]["uri"] });
    let result = inside.execute("gateway.read_resource", read).await;
    assert_eq!(result["content"], json!([{ "type": "text", "text": "what it says" }]), "{result}");
    let call = json!({ "name": "gateway.read_resource", "params": { "uri": "note://nowhere" } });
    let fault = inside.fault("execute_tool", call).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
}

#[tokio::test]
async fn a_query_of_any_length_and_kind_is_survived() {
    let inside = office().await;
    let long = "a".repeat(100_000);
    for query in [long.as_str(), "\u{1f600} \u{202e}", "((((", "*", "\0", "読む ファイル"] {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        assert!(found["results"].is_array() || found["categories"].is_array(), "{found}");
    }
}

#[tokio::test]
async fn the_categories_are_the_servers_the_gateway_and_the_groups() {
    let inside = office().await;
    insta::assert_json_snapshot!(inside.answer("list_categories", json!({})).await);
}

#[tokio::test]
async fn a_category_is_paged_by_name() {
    let inside = office().await;
    let page = async |more: Value| {
        let mut arguments = json!({ "category": "many" });
        arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        inside.answer("browse_category", arguments).await
    };
    let first = page(json!({})).await;
    assert_eq!((&first["page"], &first["page_size"], &first["total"]), (&json!(1), &json!(20), &json!(45)));
    assert_eq!(names(&first["tools"])[..2], ["many.tool_0000", "many.tool_0001"]);
    assert!(first["tools"][0]["signature"].is_string() && first["tools"][0]["risk"].is_string(), "{first}");
    let third = page(json!({ "page": 3 })).await;
    assert_eq!(
        names(&third["tools"]),
        ["many.tool_0040", "many.tool_0041", "many.tool_0042", "many.tool_0043", "many.tool_0044"]
    );
    assert_eq!(page(json!({ "page": 4 })).await["tools"], json!([]), "past the end");
    assert_eq!(page(json!({ "page": 900_000_000 })).await["tools"], json!([]), "far past the end");
    assert_eq!(names(&page(json!({ "page_size": 100 })).await["tools"]).len(), 45);
    assert_eq!(names(&page(json!({ "prefix": "tool_003" })).await["tools"]).len(), 10);
    assert_eq!(page(json!({ "prefix": "nothing" })).await["total"], 0);
}

#[tokio::test]
async fn a_group_of_the_configuration_is_a_category() {
    let inside = office().await;
    let page = inside.answer("browse_category", json!({ "category": "writing" })).await;
    assert_eq!(names(&page["tools"]), ["files.write_file", "mail.send"], "{page}");
    let page = inside.answer("browse_category", json!({ "category": "gateway" })).await;
    assert!(names(&page["tools"]).contains(&"gateway.background_run"), "{page}");
}

#[tokio::test]
async fn an_unknown_category_is_answered_with_the_nearest() {
    let inside = office().await;
    let fault = inside.fault("browse_category", json!({ "category": "fiels" })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
    assert_eq!(fault["did_you_mean"][0], "files", "{fault}");
    assert_eq!(
        fault["next_step"],
        json!({ "tool": "browse_category", "arguments": { "category": "files" } })
    );
}

#[tokio::test]
async fn nonets_own_tools_are_found_by_search() {
    let inside = office().await;
    for (query, expected) in [
        ("run a call in the background", "gateway.background_run"),
        ("state of the servers and the gateway", "gateway.status"),
        ("read on in a kept result by its ref", "gateway.fetch_result"),
        ("load full schemas of many tools", "gateway.load_tools"),
    ] {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        assert!(names(&found["results"]).contains(&expected), "{query}: {found}");
    }
}

#[tokio::test]
async fn many_tools_are_loaded_at_once_and_rank_higher_from_then_on() {
    let inside = office().await;
    let load = json!({ "name": "gateway.load_tools", "params": { "category": "mail" } });
    let loaded = json_of(&inside.call("execute_tool", load.clone()).await);
    assert_eq!(names(&loaded["tools"]), ["mail.inbox", "mail.send"]);
    assert!(loaded["tools"][0]["input_schema"].is_object(), "{loaded}");
    assert_eq!(json_of(&inside.call("execute_tool", load).await), loaded, "idempotent");

    let query = json!({ "query": "generated tool number", "category": "many", "limit": 50 });
    let before = inside.answer("search_tools", query.clone()).await;
    let place = |found: &Value| names(&found["results"]).iter().position(|name| *name == "many.tool_0033");
    let names = json!({ "name": "gateway.load_tools", "params": { "names": ["many.tool_0033", "no.such"] } });
    let loaded = inside.answer("execute_tool", names).await;
    assert_eq!(loaded["tools"][1]["error"]["code"], "unknown_tool", "{loaded}");
    let after = inside.answer("search_tools", query).await;
    assert!(
        place(&after) < place(&before) && place(&after) == Some(0),
        "{:?} {:?}",
        place(&before),
        place(&after)
    );
}

#[tokio::test]
async fn a_server_that_is_still_starting_is_told() {
    let inside = Setup::new().server("slow", json!({ "start_delay_ms": 60_000 })).open_at_once();
    let found = inside.answer("search_tools", json!({ "query": "anything" })).await;
    assert!(found["hint"].as_str().is_some_and(|hint| hint.contains("slow")), "{found}");
    let page = inside.answer("browse_category", json!({ "category": "slow" })).await;
    assert_eq!(page["total"], 0, "{page}");
}

/// Returns servers whose tools are about events, tasks, builds, orders and files, as Nonet's own tools are.
fn workplace() -> Setup {
    let text = json!({ "type": "string" });
    let tools = |list: &[(&str, &str)]| {
        let tool = |(name, description): &(&str, &str)| tool(name, description, json!({ "id": text }));
        json!({ "tools": list.iter().map(tool).collect::<Vec<Value>>() })
    };
    let calendar = [
        ("create_event", "Creates an event in the calendar, such as a meeting with other people"),
        ("list_events", "Lists the events of a day or a week"),
        ("delete_event", "Deletes an event"),
    ];
    let todoist = [
        ("get_tasks", "Get a list of tasks from Todoist with various filters"),
        ("add_task", "Adds a task with a due date to a project"),
        ("close_task", "Closes a task"),
    ];
    let jira = [
        ("search_issues", "Searches issues with JQL"),
        ("update_issue", "Updates the fields of an issue, such as its status"),
    ];
    let github = [
        ("create_pull_request", "Opens a pull request"),
        ("search_code", "Searches code in repositories for a pattern"),
    ];
    let ci = [
        ("run_workflow", "Runs a workflow on a branch"),
        ("stop_build", "Stops a running build"),
        ("build_status", "Shows the state of a build and its log"),
        ("list_deployments", "Lists deployments and when they were made"),
    ];
    Setup::new()
        .server("calendar", tools(&calendar))
        .server("todoist", tools(&todoist))
        .server("jira", tools(&jira))
        .server("github", tools(&github))
        .server("ci", tools(&ci))
}

/// Checks the first hits of searches, and that Nonet's own tools do not make an answer certain.
async fn check_first(inside: &Inside, expected: &[(&str, &str)]) {
    for (query, tool) in expected {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        assert_eq!(names(&found["results"]).first(), Some(tool), "{query}: {found}");
        assert!(!tool.starts_with("gateway.") || found["confidence"] != "high", "{query}: {found}");
    }
}

/// Requests that a server fulfils, and requests that only Nonet fulfils.
const OF_SERVERS: [(&str, &str); 6] = [
    ("list my tasks", "todoist.get_tasks"),
    ("add a task to buy milk", "todoist.add_task"),
    ("stop the running build", "ci.stop_build"),
    ("show the state of the build", "ci.build_status"),
    ("schedule a meeting with Bob", "calendar.create_event"),
    ("update the status of an issue", "jira.update_issue"),
];
const OF_NONET: [(&str, &str); 6] = [
    ("remind me tomorrow", "gateway.remind"),
    ("what is left to do", "gateway.task_list"),
    ("run this in the background", "gateway.background_run"),
    ("stop the watch", "gateway.watch_stop"),
    ("every weekday at 9", "gateway.schedule"),
    ("cancel the schedule", "gateway.cancel_schedule"),
];

#[tokio::test]
async fn own_tools_give_way_unless_the_request_is_about_them() {
    let inside = workplace().open().await;
    check_first(&inside, &OF_SERVERS).await;
    check_first(&inside, &OF_NONET).await;
    // The name suffices for certainty.
    let named = inside.answer("search_tools", json!({ "query": "gateway.task_list" })).await;
    assert_eq!(
        (&named["results"][0]["name"], &named["confidence"]),
        (&json!("gateway.task_list"), &json!("high"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn own_tools_give_way_by_meaning_too() {
    let inside = workplace().by_meaning("").open().await;
    inside.gateway.publisher.indexed(PATIENCE).await;
    check_first(&inside, &OF_SERVERS).await;
    check_first(&inside, &OF_NONET).await;
    check_first(&inside, &[("remember that deploys are on Tuesdays", "gateway.remember")]).await;
}

#[tokio::test]
async fn an_own_tool_found_for_want_of_another_is_a_guess() {
    let inside = office().await;
    for query in ["status of the order", "load a dataset", "grep for a pattern"] {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        assert_eq!(found["confidence"], "none", "{query}: {found}");
    }
}

#[tokio::test]
async fn a_priority_of_an_own_tool_is_kept() {
    let setup = workplace().toml("[profiles.todo]\npriorities = { 'gateway.task_*' = 2 }");
    let inside = setup.open().await;
    let todo = inside.under("todo");
    let found = json_of(&inside.call_as(&todo, "search_tools", json!({ "query": "list my tasks" })).await);
    assert_eq!(found["results"][0]["name"], "gateway.task_list", "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_catalogue_gets_a_graph_and_keeps_it_when_tools_come() {
    let tools = json!([
        { "name": "grow", "on": { "grow": "irrigation" } },
        { "name": "forecast", "description": "Tells whether it will rain in a city" },
    ]);
    let inside = Setup::new()
        .by_meaning("hnsw_above = 100")
        .server("many", json!({ "tool_count": 120, "tools": tools }))
        .open()
        .await;
    let first = async |query: &str| {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        found["results"][0]["name"].as_str().map(str::to_owned)
    };
    inside.gateway.publisher.indexed(PATIENCE).await;
    assert_eq!(first("do I need an umbrella").await.as_deref(), Some("many.forecast"));
    let graph =
        eventually("the graph is built", async || inside.gateway.publisher.snapshot().index.graph().cloned())
            .await;
    assert_eq!(first("shall I take an umbrella").await.as_deref(), Some("many.forecast"));

    inside.execute("many.grow", json!({})).await;
    eventually("the new tool is listed", async || {
        inside.gateway.publisher.snapshot().catalog.get("many.irrigation").map(|_| ())
    })
    .await;
    inside.gateway.publisher.indexed(PATIENCE).await;
    let snapshot = inside.gateway.publisher.snapshot();
    assert!(snapshot.index.has_all_vectors());
    assert!(snapshot.index.graph().is_some_and(|kept| std::sync::Arc::ptr_eq(kept, &graph)));
    assert_eq!(first("water my plants").await.as_deref(), Some("many.irrigation"));
}
