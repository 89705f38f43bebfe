//! Denied tools can be neither seen nor called, on any path.

use serde_json::{Value, json};

use crate::{
    inside::Inside,
    setup::{Setup, golden, json_of},
};

const HIDDEN: [&str; 4] = ["files.move_file", "files.delete_file", "web.post", "web.put"];

fn tools(names: &[&str]) -> Value {
    let tools = names.iter().map(|name| {
        json!({ "name": name, "description": format!("The {name} of things"), "annotations": { "readOnlyHint": name.starts_with("read") } })
    });
    json!({ "tools": tools.collect::<Vec<_>>() })
}

async fn office() -> Inside {
    Setup::new()
        .server_with("files", tools(&["read_file", "move_file", "delete_file"]), "blocked_tools = ['move_*']")
        .server_with("web", tools(&["get", "post", "put"]), "allowed_tools = ['get', 'read_*']")
        .toml("[servers.files.tools.delete_file]\npolicy = 'deny'")
        .toml("[profiles.reader]\ncategories = ['files']\nmax_risk = 'low'")
        .toml("[profiles.narrow]\nallow = ['web.get']\n[profiles.strict]\ndeny = ['files.*']")
        .open()
        .await
}

#[tokio::test]
async fn what_is_blocked_is_forbidden_by_every_door() {
    let inside = office().await;
    for name in HIDDEN {
        for (tool, arguments) in [
            ("execute_tool", json!({ "name": name })),
            ("get_tool", json!({ "name": name })),
            (name, json!({})),
            ("gateway.background_run", json!({ "name": name })),
        ] {
            let fault = inside.fault(tool, arguments).await;
            assert_eq!(fault["code"], "forbidden", "{tool} {name}: {fault}");
        }
        let actions = json!({ "actions": [{ "name": name }] });
        let report = inside.answer("run_parallel", actions).await;
        assert_eq!(report["results"][0]["error"]["code"], "forbidden", "{name}: {report}");
    }
    assert_eq!(inside.answer("files.read_file", json!({ "path": "a" })).await, json!({ "path": "a" }));
    let fault = inside.fault("files.move_file", json!({})).await;
    assert!(
        fault["message"].as_str().is_some_and(|text| text.contains("servers.files.blocked_tools")),
        "{fault}"
    );
}

#[tokio::test]
async fn what_is_blocked_is_not_seen() {
    let inside = office().await;
    for name in HIDDEN {
        let found = inside.answer("search_tools", json!({ "query": name, "limit": 50 })).await;
        assert!(!found.to_string().contains(&format!("\"{name}\"")), "{found}");
        let found = inside.answer("search_tools", json!({ "query": "things", "limit": 50 })).await;
        assert!(!found.to_string().contains(&format!("\"{name}\"")), "{found}");
    }
    let page = inside.answer("browse_category", json!({ "category": "files" })).await;
    assert_eq!((&page["total"], &page["tools"][0]["name"]), (&json!(1), &json!("files.read_file")), "{page}");
    let categories = inside.answer("list_categories", json!({})).await;
    let count = |name: &str| {
        let all = categories["categories"].as_array().expect("categories");
        all.iter().find(|category| category["name"] == name).map(|category| category["tool_count"].clone())
    };
    assert_eq!((count("files"), count("web")), (Some(json!(1)), Some(json!(1))));
    let fault = inside.fault("execute_tool", json!({ "name": "files.move_fil" })).await;
    assert!(
        !fault["did_you_mean"].to_string().contains("move_file"),
        "a hidden tool is not suggested: {fault}"
    );
    let loaded = inside
        .answer("execute_tool", json!({ "name": "gateway.load_tools", "params": { "category": "web" } }))
        .await;
    assert_eq!(loaded["tools"].as_array().map(Vec::len), Some(1), "{loaded}");
}

#[tokio::test]
async fn a_hidden_tool_does_not_make_a_name_ambiguous() {
    let inside = Setup::new()
        .server("one", tools(&["read_it"]))
        .server_with("two", tools(&["read_it"]), "blocked_tools = ['*']")
        .open()
        .await;
    assert_eq!(inside.answer("read_it", json!({ "a": 1 })).await, json!({ "a": 1 }));
}

#[tokio::test]
async fn a_profile_shows_its_own_tools_alone() {
    let inside = office().await;
    let reader = inside.under("reader");
    let answer = async |tool: &str, arguments: Value| {
        crate::setup::json_of(&inside.call_as(&reader, tool, arguments).await)
    };
    assert_eq!(answer("execute_tool", json!({ "name": "files.read_file" })).await, json!({}));
    for (name, code) in [("web.get", "unknown_tool"), ("files.move_file", "forbidden")] {
        let refused = answer("execute_tool", json!({ "name": name })).await;
        assert_eq!(refused["error"]["code"], code, "{refused}");
    }
    let found = answer("search_tools", json!({ "query": "get things", "limit": 50 })).await;
    assert!(!found.to_string().contains("web.get"), "{found}");
    let categories = answer("list_categories", json!({})).await;
    let names: Vec<&Value> = categories["categories"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|category| &category["name"])
        .collect();
    assert!(names.contains(&&json!("files")) && !names.contains(&&json!("web")), "{categories}");

    // A nearly right name does not reveal a hidden one.
    let unknown = answer("get_tool", json!({ "name": "web.gett" })).await;
    assert_eq!(unknown["error"]["code"], "unknown_tool", "{unknown}");
    assert!(!unknown.to_string().contains("web.get\""), "{unknown}");
    // A background launch obeys the same rules.
    let launch = json!({ "name": "gateway.background_run", "params": { "name": "web.get" } });
    assert_eq!(answer("execute_tool", launch).await["error"]["code"], "unknown_tool");

    let narrow = inside.under("narrow");
    let told = inside.call_as(&narrow, "web.get", json!({})).await;
    assert!(told.get("isError").is_none(), "{told}");
    let told = inside.call_as(&narrow, "files.read_file", json!({})).await;
    assert_eq!(told["isError"], true, "{told}");

    let strict = inside.under("strict");
    assert_eq!(inside.call_as(&strict, "files.read_file", json!({})).await["isError"], true);
    assert!(inside.call_as(&strict, "web.get", json!({})).await.get("isError").is_none());
}

#[tokio::test]
async fn a_server_that_a_profile_does_not_see_is_like_no_server() {
    let vault = json!({
        "tools": [{ "name": "unlock" }],
        "prompts": [{ "name": "plan", "text": "Plan." }],
        "resources": [{ "uri": "note://vault", "text": "open" }],
        "instructions": "Where the money is",
    });
    let setup = Setup::new()
        .server("files", tools(&["read_file", "write_file"]))
        .server("vault", vault)
        .server_with("cellar", tools(&["dig"]), "expose = 'verbatim'")
        .toml("[categories.money]\nservers = ['vault']\n[profiles.narrow]\ncategories = ['files']");
    let inside = setup.open().await;
    let narrow = inside.under("narrow");
    let owner = inside.answer("execute_tool", json!({ "name": "vault.unlock", "params": {} })).await;
    assert!(owner.get("error").is_none(), "{owner}");
    let ask = async |tool: &str, arguments: Value| inside.call_as(&narrow, tool, arguments).await.to_string();
    // Each name of something hidden, and one of the same shape that nobody has.
    let doors: [(&str, Value); 17] = [
        ("execute_tool", json!({ "name": "NAME.unlock", "params": {} })),
        ("execute_tool", json!({ "name": "NAME__unlock", "params": {} })),
        ("execute_tool", json!({ "name": "Name/Un-Lock", "params": {} })),
        ("execute_tool", json!({ "name": "mcp__nonet__NAME__unlock", "params": {} })),
        ("execute_tool", json!({ "name": "NAME.nothing", "params": {} })),
        ("execute_tool", json!({ "name": "skills.NAME/plan", "params": {} })),
        ("NAME__unlock", json!({})),
        ("get_tool", json!({ "name": "NAME.unlock" })),
        ("get_tool", json!({ "names": ["NAME.unlock", "files.read_file"] })),
        ("browse_category", json!({ "category": "NAME" })),
        ("search_tools", json!({ "query": "unlock", "category": "NAME" })),
        ("use_skill", json!({ "command": "NAME/plan" })),
        ("run_parallel", json!({ "actions": [{ "name": "NAME.unlock" }] })),
        ("execute_tool", json!({ "name": "gateway.background_run", "params": { "name": "NAME.unlock" } })),
        ("execute_tool", json!({ "name": "gateway.load_tools", "params": { "names": ["NAME.unlock"] } })),
        ("execute_tool", json!({ "name": "gateway.watch_start", "params": { "name": "NAME.unlock" } })),
        ("execute_tool", json!({ "name": "gateway.read_resource", "params": { "uri": "note://NAME" } })),
    ];
    let spelled = |text: &str, name: &str| {
        let capital = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
        text.replace("NAME", name).replace("Name", &capital)
    };
    for (tool, arguments) in &doors {
        let mut answers = Vec::new();
        for name in ["vault", "bogus"] {
            let arguments = serde_json::from_str(&spelled(&arguments.to_string(), name)).expect("JSON");
            let answer = inside.call_as(&narrow, &spelled(tool, name), arguments).await;
            let answer = golden(json_of(&answer)).to_string();
            answers.push(answer.replace(&spelled("Name", name), "NAME").replace(name, "NAME"));
        }
        assert_eq!(answers[0], answers[1], "{tool} {arguments}");
    }
    for (tool, arguments) in [
        ("browse_category", json!({ "category": "money" })),
        ("browse_category", json!({ "category": "vualt" })),
        ("execute_tool", json!({ "name": "dig", "params": {} })),
        ("execute_tool", json!({ "name": "unlock", "params": {} })),
        ("list_categories", json!({})),
        ("use_skill", json!({})),
        ("execute_tool", json!({ "name": "gateway.status", "params": {} })),
        ("search_tools", json!({ "query": "unlock the vault, dig in the cellar" })),
    ] {
        let answer = ask(tool, arguments.clone()).await;
        let answer = answer.replace("unlock the vault, dig in the cellar", "");
        for word in ["vault.", "\\\"vault", "vault/", "cellar", "profiles.narrow"] {
            assert!(!answer.contains(word), "{tool} {arguments}: {answer}");
        }
    }
    let status =
        inside.call_as(&narrow, "execute_tool", json!({ "name": "gateway.status", "params": {} })).await;
    let status = json_of(&status);
    assert_eq!((&status["tools"], &status["search"]["of"]), (&json!(2), &Value::Null), "{status}");
}

#[tokio::test]
async fn a_search_can_be_kept_to_a_risk() {
    let inside = Setup::new()
        .server(
            "disk",
            json!({ "tools": [
                { "name": "read_disk", "description": "disk things", "annotations": { "readOnlyHint": true } },
                { "name": "copy_disk", "description": "disk things", "annotations": { "readOnlyHint": false, "destructiveHint": false } },
                { "name": "wipe_disk", "description": "disk things", "annotations": { "destructiveHint": true } },
            ] }),
        )
        .open()
        .await;
    for (risk, expected) in [("low", 1), ("medium", 2), ("high", 3)] {
        let found = inside
            .answer("search_tools", json!({ "query": "disk things", "category": "disk", "max_risk": risk }))
            .await;
        assert_eq!(found["results"].as_array().map(Vec::len), Some(expected), "{risk}: {found}");
    }
}

#[tokio::test]
async fn what_changes_is_not_found_among_what_only_reads() {
    let names =
        ["read_query", "write_query", "insert_numbered_list_near_text", "convert-contents", "zap_table"];
    let more =
        "[servers.files.tools.zap_table]\nrisk = 'low'\n[servers.files.tools.read_query]\nrisk = 'high'";
    let low = async |more: &str| {
        let tools: Vec<Value> =
            names.iter().map(|name| json!({ "name": name, "description": "Works on things" })).collect();
        let inside = Setup::new().server("files", json!({ "tools": tools })).toml(more).open().await;
        let arguments = json!({ "query": "works on things", "category": "files", "max_risk": "low" });
        let found = inside.answer("search_tools", arguments).await;
        let hits = found["results"].as_array().expect("hits").iter();
        hits.filter_map(|hit| hit["name"].as_str().map(String::from)).collect::<Vec<_>>()
    };
    assert_eq!(low("").await, ["files.read_query"]);
    // The user's rule overrides the estimate, in either direction.
    assert_eq!(low(more).await, ["files.zap_table"]);
}

#[tokio::test]
async fn only_limits_what_a_profile_shows_and_allow_adds_to_it() {
    let check = async |keys: &str, expected: &[&str]| {
        let inside = Setup::new()
            .server("files", tools(&["read_file", "write_file"]))
            .server("web", tools(&["read_page", "post"]))
            .toml(&format!("[profiles.p]\n{keys}"))
            .open()
            .await;
        let caller = inside.under("p");
        let mut seen = Vec::new();
        for name in ["files.read_file", "files.write_file", "web.read_page", "web.post", "gateway.status"] {
            let result = inside.call_as(&caller, "execute_tool", json!({ "name": name })).await;
            if result["isError"] != true {
                seen.push(name);
            } else if keys.contains("only") && !keys.contains("deny") {
                let fault = crate::setup::json_of(&result)["error"].take();
                // A server of which nothing is seen is unknown.
                let codes = [json!("forbidden"), json!("unknown_tool")];
                assert!(codes.contains(&fault["code"]), "{keys}: {fault}");
            }
        }
        assert_eq!(seen, expected, "{keys}");
    };
    check("only = ['*.read_*']", &["files.read_file", "web.read_page", "gateway.status"]).await;
    check("only = ['*.read_*']\ncategories = ['files']", &["files.read_file", "gateway.status"]).await;
    let of_files = &["files.read_file", "files.write_file", "gateway.status"];
    check("only = ['files.*']\nallow = ['web.post']", of_files).await;
    check(
        "only = ['files.*', 'web.post']\ncategories = ['files']\nallow = ['web.*']",
        &["files.read_file", "files.write_file", "web.post", "gateway.status"],
    )
    .await;
    check("only = ['files.*']\nmax_risk = 'low'", &["files.read_file", "gateway.status"]).await;
    check("only = ['files.*']\ndeny = ['*.write_*']", &["files.read_file", "gateway.status"]).await;
}
