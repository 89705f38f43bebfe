//! Skills, servers' prompts and apps among the hits of a search, run by `execute_tool` and by their own
//! meta-tools.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    client::Client,
    inside::{Inside, eventually},
    setup::{Setup, eventually as eventually_now, golden, json_of, notices_of, text_of},
};

const APPS: &str = r#"
[apps.weekly]
description = "Tells the team on Friday how the project goes"
tool = "mill.say"

[apps.double]
description = "Collects what came in and counts it"
output = { said = "{{first.word}}", count = "{{second[1].id}}" }
input_schema = { type = "object", properties = { word = { type = "string" } }, required = ["word"] }
[[apps.double.steps]]
id = "first"
tool = "mill.say"
params = { word = "{{input.word}}" }
[[apps.double.steps]]
id = "second"
tool = "mill.rows"

[apps.outer]
description = "Runs another one"
[[apps.outer.steps]]
id = "inner"
tool = "apps.double"
params = { word = "{{input.word}}" }

[apps.ring]
[[apps.ring.steps]]
tool = "apps.round"
[apps.round]
tool = "apps.ring"

[apps.asks]
[[apps.asks.steps]]
ask = { question = "Which one?" }
[apps.around]
[[apps.around.steps]]
tool = "apps.asks"

[profiles.mill]
categories = ["mill"]
[profiles.bare]
categories = ["mill"]
deny = ["skills.lumber", "apps.weekly"]
"#;

fn write_skill(folder: &Path, name: &str, description: &str) {
    let folder = folder.join(name);
    fs::create_dir_all(&folder).expect("a folder");
    let text = format!("---\nname: {name}\ndescription: {description}\n---\nCut $ARGUMENTS with care.\n");
    fs::write(folder.join("SKILL.md"), text).expect("a file");
}

fn setup() -> Setup {
    let setup = Setup::new();
    let skills = setup.path("skills");
    write_skill(&skills, "lumber", "Turns trees into planks for a house");
    let farewell = json!({
        "name": "farewell",
        "description": "Thanks somebody who is leaving",
        "arguments": [{ "name": "who", "description": "The person", "required": true }, { "name": "how" }],
        "text": "Wish {{who}} well.",
    });
    let word = json!({ "type": "object", "properties": { "word": { "type": "string" } } });
    let mill = json!([
        { "name": "say", "description": "Repeats a word", "input_schema": word },
        { "name": "rows", "description": "Lists rows", "on": { "json_rows": 3 } },
    ]);
    setup
        .server("mill", json!({ "tools": mill }))
        .server(
            "folk",
            json!({ "tools": [{ "name": "look", "description": "Looks around" }], "prompts": [farewell] }),
        )
        .gateway("skills = ['skills']")
        .toml(APPS)
}

async fn workshop() -> Inside {
    setup().open().await
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect()
}

#[tokio::test]
async fn each_is_found_by_its_meaning_and_its_call_can_be_copied() {
    let inside = workshop().await;
    for (query, name, kind) in [
        ("make planks of a tree", "skills.lumber", "skill"),
        ("say thanks to a person leaving", "skills.folk/farewell", "skill"),
        ("tell my team on friday how the project goes", "apps.weekly", "app"),
    ] {
        let found = inside.answer("search_tools", json!({ "query": query })).await;
        let hit = &found["results"][0];
        assert_eq!((&hit["name"], &hit["kind"]), (&json!(name), &json!(kind)), "{query}: {found}");
        let call = &hit["call"];
        let tool = call["tool"].as_str().expect("it names a meta-tool");
        let result = inside.call(tool, call["arguments"].clone()).await;
        assert_ne!(result["isError"], true, "{call}: {result}");
        assert!(hit.get("signature").is_none(), "{found}");
    }
    let found =
        inside.golden("search_tools", json!({ "query": "say thanks to a person leaving", "limit": 1 })).await;
    insta::assert_json_snapshot!(found);
    let tool = inside.answer("search_tools", json!({ "query": "repeat a word" })).await;
    assert_eq!(tool["results"][0]["name"], "mill.say", "{tool}");
    assert!(tool["results"][0].get("kind").is_none() && tool["results"][0].get("call").is_none(), "{tool}");
}

#[tokio::test]
async fn a_skill_is_run_like_a_tool() {
    let inside = workshop().await;
    let by_itself = inside.call("use_skill", json!({ "command": "lumber", "arguments": "oak" })).await;
    let like_a_tool = inside.execute("skills.lumber", json!({ "arguments": "oak" })).await;
    assert_eq!(like_a_tool, by_itself);
    assert!(text_of(&like_a_tool).contains("Cut oak with care."), "{like_a_tool}");
    let direct = inside.call("skills__lumber", json!({ "arguments": "oak" })).await;
    assert_eq!(direct, by_itself);

    // The name of a hit also works as a command.
    let named = inside.call("use_skill", json!({ "command": "skills.lumber", "arguments": "oak" })).await;
    assert_eq!(named, by_itself);
    let prompt = inside.execute("skills.folk/farewell", json!({ "who": "Ada" })).await;
    assert!(text_of(&prompt).contains("Wish Ada well."), "{prompt}");
    let lacking = inside.execute("skills.folk/farewell", json!({})).await;
    let fault = &json_of(&lacking)["error"];
    assert_eq!((&lacking["isError"], &fault["code"]), (&json!(true), &json!("invalid_params")), "{fault}");
    let missing = inside.execute("skills.lumbar", json!({})).await;
    let fault = &json_of(&missing)["error"];
    assert_eq!(
        (&fault["code"], &fault["did_you_mean"][0]),
        (&json!("unknown_tool"), &json!("skills.lumber")),
        "{fault}"
    );
}

#[tokio::test]
async fn a_skill_is_not_taken_for_one_with_a_name_like_its_own() {
    let setup = setup();
    let skills = setup.path("skills");
    write_skill(&skills, "folk farewell", "Something else");
    write_skill(&skills, "v1.2 (new)", "Has an odd name");
    let inside = setup.open().await;
    let arguments = json!({ "who": "Ada" });
    for name in ["skills.folk/farewell", "skills.folk farewell"] {
        let by_prompt = text_of(&inside.execute(name, arguments.clone()).await).contains("Wish Ada well.");
        assert_eq!(by_prompt, name.contains('/'), "{name}");
        let named = json!({ "command": name, "arguments": arguments });
        let by_prompt = text_of(&inside.call("use_skill", named).await).contains("Wish Ada well.");
        assert_eq!(by_prompt, name.contains('/'), "{name}");
    }
    let odd = inside.execute("skills.v1.2 (new)", json!({ "arguments": "oak" })).await;
    assert!(text_of(&odd).contains("Cut oak with care."), "{odd}");
    let direct = inside.call("skills__v1_2__new_", json!({ "arguments": "oak" })).await;
    assert_eq!(direct, odd);
}

#[tokio::test]
async fn an_app_is_run_like_a_tool() {
    let inside = workshop().await;
    let call = json!({ "app_id": "double", "input": { "word": "hey" } });
    let by_itself = inside.answer("call_app", call).await;
    assert_eq!(by_itself["output"], json!({ "said": "hey", "count": 1 }), "{by_itself}");
    let like_a_tool = json_of(&inside.execute("apps.double", json!({ "word": "hey" })).await);
    assert_eq!(like_a_tool, by_itself);
    let direct = inside.answer("apps__double", json!({ "word": "hey" })).await;
    assert_eq!(direct, by_itself);
    let named = json!({ "app_id": "apps.double", "input": { "word": "hey" } });
    assert_eq!(inside.answer("call_app", named).await, by_itself);
    let filtered = json!({ "name": "apps.double", "params": { "word": "hey" }, "select": ".output.count" });
    assert_eq!(text_of(&inside.call("execute_tool", filtered).await), "1");
    let open = json_of(&inside.execute("apps.weekly", json!({ "input": { "word": "hey" } })).await);
    assert_eq!(open["output"], json!({ "word": "hey" }), "{open}");
    let open = json_of(&inside.execute("apps.weekly", json!({ "word": "hey" })).await);
    assert_eq!(open["output"], json!({ "word": "hey" }), "{open}");

    let unfit = json_of(&inside.execute("apps.double", json!({})).await)["error"].take();
    let meant = inside.fault("call_app", json!({ "app_id": "double", "input": {} })).await;
    assert_eq!(unfit, meant);
    let launch = json!({ "name": "apps.double", "params": { "word": "hey" }, "background": true });
    let launched = inside.answer("execute_tool", launch).await;
    assert_eq!(launched, by_itself, "it ends within the time for a quick end");
}

#[tokio::test]
async fn plans_take_skills_and_apps_as_actions() {
    let inside = workshop().await;
    let actions = json!([
        { "id": "two", "name": "apps.double", "params": { "word": "hey" } },
        { "id": "text", "name": "skills.lumber", "params": { "arguments": "oak" } },
        { "id": "last", "name": "mill.say", "params": { "word": "{{two.said}}" } },
    ]);
    let report = inside.golden("run_parallel", json!({ "actions": actions })).await;
    insta::assert_json_snapshot!(report);
    let outer = inside.answer("call_app", json!({ "app_id": "outer", "input": { "word": "hey" } })).await;
    assert_eq!(outer["output"], json!({ "said": "hey", "count": 1 }), "{outer}");
    assert_eq!(outer["tool_calls"], 2, "{outer}");
}

#[tokio::test]
async fn an_app_never_runs_inside_of_itself() {
    let inside = workshop().await;
    for app in ["ring", "round"] {
        let fault = inside.fault("call_app", json!({ "app_id": app })).await;
        assert!(fault.to_string().contains("inside itself"), "{fault}");
    }
    let fault = inside.fault("call_app", json!({ "app_id": "around" })).await;
    assert!(fault.to_string().contains("asks the user"), "{fault}");
    let asked = inside.answer("execute_tool", json!({ "name": "apps.asks", "params": {} })).await;
    assert_eq!((&asked["status"], &asked["app_id"]), (&json!("needs_user"), &json!("asks")), "{asked}");
}

#[tokio::test]
async fn filters_by_kind_and_tags() {
    let inside = {
        let tools = json!([{ "name": "say", "description": "Repeats a word" }, { "name": "rows", "description": "Lists a word" }]);
        let keys = "tags = ['noisy']\n[servers.mill.tools.rows]\ntags = ['tables']";
        let setup = Setup::new();
        write_skill(&setup.path("skills"), "words", "Finds a better word");
        let apps = "[apps.spell]\ndescription = 'Spells a word'\ntool = 'mill.say'";
        setup
            .server_with("mill", json!({ "tools": tools }), keys)
            .gateway("skills = ['skills']")
            .toml(apps)
            .open()
            .await
    };
    let found = async |filter: Value| {
        let mut arguments = json!({ "query": "a word" });
        for (key, value) in filter.as_object().expect("an object") {
            arguments[key] = value.clone();
        }
        let found = inside.answer("search_tools", arguments).await;
        let mut names: Vec<String> = names(&found["results"]).into_iter().map(String::from).collect();
        names.sort();
        names
    };
    assert_eq!(found(json!({ "kind": "skill" })).await, ["skills.words"]);
    assert_eq!(found(json!({ "type": "app" })).await, ["apps.spell"]);
    assert_eq!(
        found(json!({ "kind": "tool", "max_risk": "medium", "tags": ["noisy"] })).await,
        ["mill.rows", "mill.say"]
    );
    assert_eq!(found(json!({ "tag": "Tables" })).await, ["mill.rows"]);
    assert_eq!(found(json!({ "tags": ["none"] })).await, Vec::<String>::new());
    assert_eq!(found(json!({ "category": "skills" })).await, ["skills.words"]);
    assert_eq!(
        found(json!({ "max_risk": "low" })).await.iter().filter(|name| name.starts_with("apps.")).count(),
        0
    );
    let all = inside.answer("search_tools", json!({ "kind": "app" })).await;
    assert_eq!((names(&all["tools"]), &all["category"]), (vec!["apps.spell"], &json!("apps")), "{all}");
    let tagged = inside.answer("search_tools", json!({ "tags": ["tables"] })).await;
    assert_eq!(names(&tagged["tools"]), ["mill.rows"], "{tagged}");
}

#[tokio::test]
async fn the_categories_count_them_beside_the_tools() {
    let inside = workshop().await;
    let answer = inside.answer("list_categories", json!({})).await;
    let of = |name: &str| {
        answer["categories"].as_array().expect("a list").iter().find(|one| one["name"] == name).cloned()
    };
    insta::assert_json_snapshot!([of("skills"), of("apps")]);
    let tools = |name: &str| of(name).expect("it is there")["tool_count"].as_u64();
    let total = ["gateway", "mill", "folk"].iter().filter_map(|name| tools(name)).sum::<u64>();
    assert_eq!(answer["total_tools"], total, "{answer}");
    let page = inside.answer("browse_category", json!({ "category": "skills" })).await;
    insta::assert_json_snapshot!(page);
    let loaded = inside.execute("gateway.load_tools", json!({ "category": "apps" })).await;
    assert_eq!(json_of(&loaded)["tools"][0]["call"]["tool"], "call_app", "{loaded}");
    let empty = Setup::new().open().await;
    let answer = empty.answer("list_categories", json!({})).await;
    assert_eq!(names(&answer["categories"]), ["gateway"]);
    let page = empty.answer("browse_category", json!({ "category": "apps" })).await;
    assert_eq!((&page["total"], &page["tools"]), (&json!(0), &json!([])), "{page}");
}

#[tokio::test]
async fn everything_about_a_skill_a_prompt_and_an_app_is_told() {
    let inside = workshop().await;
    let names = json!(["skills.lumber", "skills.folk/farewell", "apps.double", "apps.weekly"]);
    insta::assert_json_snapshot!(golden(inside.answer("get_tool", json!({ "names": names })).await));
}

#[tokio::test]
async fn a_profile_finds_and_runs_what_its_rules_let_through() {
    let inside = workshop().await;
    let (mill, bare) = (inside.under("mill"), inside.under("bare"));
    let search = async |caller, query: &str| {
        let found =
            json_of(&inside.call_as(caller, "search_tools", json!({ "query": query, "limit": 20 })).await);
        names(&found["results"]).into_iter().map(String::from).collect::<Vec<_>>()
    };
    let is_hidden =
        async |caller, query: &str, name: &str| !search(caller, query).await.contains(&name.to_string());
    // The profile does not see the prompt's server.
    let (thanks, prompt) = ("say thanks to a person leaving", "skills.folk/farewell");
    assert!(is_hidden(&mill, thanks, prompt).await && !is_hidden(&inside.caller, thanks, prompt).await);
    let call = json!({ "name": prompt, "params": { "who": "Ada" } });
    let refused = json_of(&inside.call_as(&mill, "execute_tool", call).await)["error"].take();
    assert_eq!(refused["code"], "unknown_tool", "{refused}");
    let skill = json_of(&inside.call_as(&mill, "use_skill", json!({ "command": "folk/farewell" })).await);
    assert_eq!(skill["error"]["code"], "not_found", "{skill}");
    // Folders' skills and apps are visible in every profile that does not deny them by name.
    assert!(!is_hidden(&mill, "make planks of a tree", "skills.lumber").await);
    assert!(is_hidden(&bare, "make planks of a tree", "skills.lumber").await);
    for (tool, arguments) in [
        ("use_skill", json!({ "command": "lumber" })),
        ("execute_tool", json!({ "name": "skills.lumber", "params": {} })),
        ("call_app", json!({ "app_id": "weekly" })),
        ("execute_tool", json!({ "name": "apps.weekly", "params": {} })),
    ] {
        let refused = json_of(&inside.call_as(&bare, tool, arguments.clone()).await);
        assert_eq!(refused["error"]["code"], "forbidden", "{tool} {arguments}: {refused}");
        assert!(refused.to_string().contains("profiles.bare.deny"), "{refused}");
    }
    let counts = async |caller| {
        let answer = json_of(&inside.call_as(caller, "list_categories", json!({})).await);
        let count = |name: &str| {
            answer["categories"].as_array()?.iter().find(|one| one["name"] == name)?["tool_count"].as_u64()
        };
        (count("skills"), count("apps"))
    };
    assert_eq!(counts(&inside.caller).await, (Some(2), Some(7)));
    assert_eq!(counts(&mill).await, (Some(1), Some(7)));
    assert_eq!(counts(&bare).await, (None, Some(6)));
}

#[tokio::test]
async fn a_skill_comes_and_goes_while_nonet_runs() {
    let inside = workshop().await;
    let folder = inside.folder.path().join("skills");
    let query = json!({ "query": "teach a parrot to speak" });
    let before = inside.answer("search_tools", query.clone()).await;
    assert!(!before.to_string().contains("skills.parrot"), "{before}");
    write_skill(&folder, "parrot", "Teaches a bird to speak");
    // A name is looked up at once; a search rereads the folders after some seconds.
    let text = inside.execute("skills.parrot", json!({})).await;
    assert!(text_of(&text).contains("with care"), "{text}");
    let found = inside.answer("search_tools", query.clone()).await;
    assert_eq!(found["results"][0]["name"], "skills.parrot", "{found}");
    fs::remove_dir_all(folder.join("parrot")).expect("it is there");
    let gone = inside.execute("skills.parrot", json!({})).await;
    assert_eq!(gone["isError"], true, "{gone}");
    eventually("the skill is gone from searches", async || {
        let found = inside.answer("search_tools", query.clone()).await;
        (!found.to_string().contains("skills.parrot")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn errands_take_apps_and_say_why_they_take_no_skills() {
    let inside = workshop().await;
    let schedule = async |params: Value| inside.execute("gateway.schedule", params).await;
    let told = json_of(
        &schedule(json!({ "when": "in 5m", "name": "apps.double", "params": { "word": "hey" } })).await,
    );
    assert_eq!(told["app_id"], "double", "{told}");
    let unfit =
        json_of(&schedule(json!({ "when": "in 5m", "name": "apps.double", "params": { "other": 1 } })).await);
    assert_eq!(unfit["error"]["code"], "invalid_params", "{unfit}");
    let refused = json_of(&schedule(json!({ "when": "in 5m", "name": "skills.lumber" })).await);
    assert!(
        refused["error"]["message"].as_str().is_some_and(|text| text.contains("text for a model")),
        "{refused}"
    );
    for name in ["apps.weekly", "skills.lumber"] {
        let refused = json_of(&inside.execute("gateway.watch_start", json!({ "name": name })).await);
        assert!(
            refused["error"]["message"].as_str().is_some_and(|text| text.contains("cannot be watched")),
            "{refused}"
        );
    }
    let launched = inside
        .execute("gateway.background_run", json!({ "name": "apps.double", "params": { "word": "hey" } }))
        .await;
    assert_eq!(json_of(&launched)["output"]["said"], "hey", "{launched}");
}

#[tokio::test]
async fn what_a_search_led_to_counts_for_them_too() {
    let inside = workshop().await;
    inside.gateway.observing.recalled().await;
    for (query, name, tool, arguments) in [
        ("carpenter", "skills.lumber", "use_skill", json!({ "command": "lumber" })),
        ("newsletter", "apps.weekly", "call_app", json!({ "app_id": "weekly", "input": "x" })),
    ] {
        // First found by other words, so that the search has it among its hits.
        let score = async || {
            let words =
                json!({ "query": format!("{query} planks tree team friday"), "limit": 20, "detail": "full" });
            let found = inside.answer("search_tools", words).await;
            let hit =
                found["results"].as_array().expect("a list").iter().find(|hit| hit["name"] == name).cloned();
            hit.unwrap_or_else(|| panic!("{name} is not found: {found}"))["score"].as_f64().expect("a score")
        };
        let before = score().await;
        let used = inside.call(tool, arguments).await;
        assert!(used["isError"] != true && notices_of(&used).is_empty(), "{used}");
        assert!(score().await > before, "{name}");
    }
}

/// The full names of a search's hits.
fn hits(client: &mut Client, query: &str) -> Vec<String> {
    let found = client.answer("search_tools", json!({ "query": query, "limit": 50 }));
    names(&found["results"]).into_iter().map(String::from).collect()
}

#[test]
fn they_follow_the_configuration_and_their_servers_over_stdio() {
    let mut client = setup().gateway("pinned = ['apps.double']").start_program();
    for server in ["mill", "folk"] {
        client.until_ready(server);
    }
    for (query, name) in [
        ("make planks of a tree", "skills.lumber"),
        ("say thanks to a person leaving", "skills.folk/farewell"),
        ("tell my team on friday how the project goes", "apps.weekly"),
    ] {
        assert_eq!(hits(&mut client, query)[0], name, "{query}");
        let run = client.execute(name, json!({ "who": "Ada", "word": "hey" }));
        assert_ne!(run["isError"], true, "{run}");
    }
    let listed = client.request("tools/list", json!({}));
    let pinned = listed["result"]["tools"].as_array().expect("a list").last().cloned().unwrap_or_default();
    assert_eq!(
        (&pinned["name"], &pinned["inputSchema"]["required"]),
        (&json!("apps__double"), &json!(["word"]))
    );
    let run = json_of(&client.call("apps__double", json!({ "word": "hey" })));
    assert_eq!(run["output"]["said"], "hey", "{run}");

    let file = client.folder.path().join("servers.toml");
    let text = fs::read_to_string(&file).expect("it is there");
    let text = text.replace("[servers.folk]\n", "[servers.folk]\nenabled = false\n");
    let text = text.replace("[apps.weekly]", "[apps.monthly]").replace("skills = ['skills']", "skills = []");
    fs::write(file.with_extension("tmp"), text).expect("it can be written");
    fs::rename(file.with_extension("tmp"), &file).expect("it can be renamed");
    client.until_notice("config_changed");
    eventually_now("what is gone is not found, and what is new is", || {
        let all = hits(&mut client, "tell my team, thank a person, make planks");
        let gone = ["skills.lumber", "skills.folk/farewell", "apps.weekly"];
        let is_there = |name: &str| all.iter().any(|hit| hit == name);
        (is_there("apps.monthly") && !gone.into_iter().any(is_there)).then_some(())
    });
    let missing = client.execute("apps.weekly", json!({}));
    assert_eq!(json_of(&missing)["error"]["code"], "unknown_tool", "{missing}");
}
