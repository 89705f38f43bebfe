//! Denied tools can be neither seen nor called, on any path.

use serde_json::{Value, json};

use crate::{inside::Inside, setup::Setup};

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
    for name in ["web.get", "files.move_file"] {
        let refused = answer("execute_tool", json!({ "name": name })).await;
        assert_eq!(refused["error"]["code"], "forbidden", "{refused}");
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
    assert_eq!(answer("execute_tool", launch).await["error"]["code"], "forbidden");

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
                assert_eq!(fault["code"], "forbidden", "{keys}: {fault}");
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
