//! `gateway.add_server`: servers that a client adds mid-session.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nonet_api::question::UserVerdict;
use nonet_parts::approvals::ApprovalDecision;
use nonet_state::session::Caller;
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    inside::{Inside, eventually},
    setup::{self, Setup, fake_server, json_of},
    sign_in_service::{Manner, Service},
    web::{WebClient, modern},
};

const ALLOWED: &str = "allow_runtime_servers = true";

fn shop() -> Value {
    json!({ "tools": [{ "name": "look" }] })
}

/// Returns a server that no configuration has.
fn music(pid: &Path) -> Value {
    json!({
        "tools": [
            { "name": "play_song", "description": "Plays a song on the gramophone" },
            { "name": "who", "on": { "counter": true } },
        ],
        "prompts": [{ "name": "compose", "text": "Compose" }],
        "pid_file": pid,
    })
}

/// Returns the params that add a scripted server.
fn server(folder: &Path, name: &str, script: &Value) -> Value {
    let file = folder.join(format!("{name}.script.json"));
    fs::write(&file, script.to_string()).expect("the script can be written");
    json!({ "name": name, "command": fake_server(), "args": ["--script-file", file] })
}

fn own(tool: &str, params: &Value) -> Value {
    json!({ "name": format!("gateway.{tool}"), "params": params })
}

fn lasting(inside: &Inside, profile: Option<&str>) -> Caller {
    let caller =
        inside.gateway.sessions.caller(inside.gateway.sessions.open(profile.map(String::from)), "test");
    Caller { lasting: true, ..caller }
}

/// Returns the error of a call.
async fn fault(inside: &Inside, caller: &Caller, tool: &str, params: &Value) -> Value {
    let result = inside.call_as(caller, "execute_tool", own(tool, params)).await;
    assert_eq!(result["isError"], true, "{result}");
    json_of(&result)["error"].take()
}

/// Decides as the user that a refused call may run. Returns the arguments that repeat the call.
async fn decided(inside: &Inside, fault: &Value) -> Value {
    assert_eq!(fault["code"], "needs_approval", "{fault}");
    let id = fault["details"]["approval"].as_str().expect("an approval");
    let decide = async |verdict| {
        let decision = ApprovalDecision { verdict, answer: None, by: "command".into() };
        inside.gateway.asking.approvals.decide(id, decision).await
    };
    // Nobody can give permission for more than this call.
    assert!(decide(UserVerdict::AllowForSession).await.is_err());
    decide(UserVerdict::Allow).await.expect("the approval waits");
    fault["next_step"]["arguments"].clone()
}

/// Calls one of Nonet's tools, with the user's permission outside of the chat. Returns the result.
async fn allowed(inside: &Inside, caller: &Caller, tool: &str, params: &Value) -> Value {
    let fault = fault(inside, caller, tool, params).await;
    let again = decided(inside, &fault).await;
    inside.call_as(caller, "execute_tool", again).await
}

async fn added(inside: &Inside, caller: &Caller, params: &Value) -> Value {
    let result = allowed(inside, caller, "add_server", params).await;
    assert_ne!(result["isError"], true, "{result}");
    json_of(&result)
}

async fn answer_as(inside: &Inside, caller: &Caller, tool: &str, arguments: Value) -> Value {
    json_of(&inside.call_as(caller, tool, arguments).await)
}

fn is_gone(pid: &str) -> bool {
    !Path::new("/proc").join(pid).join("exe").exists()
}

async fn until_gone(pid: &str) {
    eventually("the process has ended", async || is_gone(pid).then_some(())).await;
}

async fn until_forgotten(inside: &Inside, server: &str) {
    eventually("the catalogue has forgotten the server", async || {
        (!inside.gateway.publisher.snapshot().catalog.servers().contains_key(server)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_added_in_mid_session_is_that_sessions_until_it_ends() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let pid = setup.path("pid");
    let params = server(setup.folder.path(), "music", &music(&pid));
    let inside = setup.open().await;
    let (own_session, other) = (lasting(&inside, None), lasting(&inside, None));
    let before = answer_as(&inside, &other, "list_categories", json!({})).await;

    let answer = added(&inside, &own_session, &params).await;
    let browse = json!({ "tool": "browse_category", "arguments": { "category": "music" } });
    assert_eq!(answer, json!({ "name": "music", "state": "ready", "tools": 2, "next_step": browse }));
    let page = answer_as(&inside, &own_session, "browse_category", json!({ "category": "music" })).await;
    assert_eq!(page["total"], 2, "{page}");

    let query = json!({ "query": "play a song on the gramophone" });
    let found = answer_as(&inside, &own_session, "search_tools", query.clone()).await;
    assert_eq!(found["results"][0]["name"], "music.play_song", "{found}");
    let play = json!({ "name": "music.play_song", "params": { "title": "La Mer" } });
    let played = answer_as(&inside, &own_session, "execute_tool", play.clone()).await;
    assert_eq!(played, json!({ "title": "La Mer" }));
    let status = answer_as(&inside, &own_session, "execute_tool", own("status", &json!({}))).await;
    assert_eq!(status["servers"][0]["name"], "music", "{status}");
    assert_eq!(status["servers"][0]["of"], "session", "{status}");
    let skills = answer_as(&inside, &own_session, "use_skill", json!({})).await.to_string();
    assert!(skills.contains("music/compose"), "{skills}");

    // For another session the server does not exist, under any name.
    for name in ["music.play_song", "music__play_song", "play_song", "Music.Play-Song"] {
        for (tool, arguments) in
            [("execute_tool", json!({ "name": name, "params": {} })), ("get_tool", json!({ "name": name }))]
        {
            let result = inside.call_as(&other, tool, arguments).await;
            let error = &json_of(&result)["error"];
            assert_eq!(error["code"], "unknown_tool", "{name}: {result}");
            assert!(!error["did_you_mean"].to_string().contains("music"), "{name}: {result}");
        }
    }
    let found = answer_as(&inside, &other, "search_tools", query.clone()).await.to_string();
    assert!(!found.contains("music"), "{found}");
    let result = inside.call_as(&other, "browse_category", json!({ "category": "music" })).await;
    assert_eq!(json_of(&result)["error"]["code"], "not_found", "{result}");
    assert!(!json_of(&result)["error"]["did_you_mean"].to_string().contains("music"), "{result}");
    assert_eq!(answer_as(&inside, &other, "list_categories", json!({})).await, before);
    for tool in ["list_categories", "use_skill", "call_app"] {
        let listed = answer_as(&inside, &other, tool, json!({})).await.to_string();
        assert!(!listed.contains("music"), "{tool}: {listed}");
    }
    let status = answer_as(&inside, &other, "execute_tool", own("status", &json!({}))).await;
    assert!(!status.to_string().contains("music"), "{status}");
    assert_eq!(status["tools"], 1, "{status}");
    // The server's name is taken all the same.
    let taken = fault(&inside, &other, "add_server", &params).await;
    assert_eq!(taken["code"], "invalid_params", "{taken}");

    let process = fs::read_to_string(&pid).expect("it has started");
    drop(own_session);
    until_gone(&process).await;
    until_forgotten(&inside, "music").await;
    // The name is free again.
    added(&inside, &other, &params).await;
    answer_as(&inside, &other, "execute_tool", play).await;
}

#[tokio::test]
async fn what_a_session_has_added_can_be_removed_by_it() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let pid = setup.path("pid");
    let params = server(setup.folder.path(), "music", &music(&pid));
    let inside = setup.open().await;
    let (own_session, other) = (lasting(&inside, None), lasting(&inside, None));
    added(&inside, &own_session, &params).await;
    let process = fs::read_to_string(&pid).expect("it has started");
    let named = json!({ "name": "music" });
    let unknown = fault(&inside, &other, "remove_server", &named).await;
    assert_eq!(unknown["code"], "not_found", "{unknown}");
    let of_file = fault(&inside, &own_session, "remove_server", &json!({ "name": "shop" })).await;
    assert_eq!(of_file["code"], "forbidden", "{of_file}");
    assert!(of_file["message"].as_str().is_some_and(|text| text.contains("remove shop")), "{of_file}");
    let typo = fault(&inside, &own_session, "remove_server", &json!({ "name": "musik" })).await;
    assert_eq!(typo["next_step"]["arguments"], own("remove_server", &named), "{typo}");

    let removed = allowed(&inside, &own_session, "remove_server", &named).await;
    assert_eq!(json_of(&removed), json!({ "name": "music", "state": "removed" }));
    assert!(is_gone(&process), "its process has ended when the answer comes");
    let call = json!({ "name": "music.play_song", "params": {} });
    let result = inside.call_as(&own_session, "execute_tool", call).await;
    assert_eq!(json_of(&result)["error"]["code"], "unknown_tool", "{result}");
}

#[tokio::test]
async fn a_removal_that_is_cut_off_still_ends_the_server() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let pid = setup.path("pid");
    let script = json!({ "tools": [{ "name": "wait", "on": { "hang": true } }], "pid_file": pid });
    let params = server(setup.folder.path(), "music", &script);
    let inside = setup.open().await;
    added(&inside, &inside.caller, &params).await;
    let process = fs::read_to_string(&pid).expect("it has started");
    let wait = json!({ "name": "music.wait", "params": {}, "background": true });
    inside.call("execute_tool", wait).await;
    let named = json!({ "name": "music" });
    let asked = fault(&inside, &inside.caller, "remove_server", &named).await;
    decided(&inside, &asked).await;
    // The call in flight keeps the server for longer than this test waits.
    let mut removal = own("remove_server", &named);
    removal["timeout_ms"] = json!(200);
    let result = inside.call("execute_tool", removal).await;
    assert_eq!(json_of(&result)["error"]["code"], "timeout", "{result}");
    until_gone(&process).await;
    until_forgotten(&inside, "music").await;
}

#[tokio::test]
async fn without_the_key_there_is_no_such_tool() {
    let setup = Setup::new().server("shop", shop());
    let params = server(setup.folder.path(), "music", &music(&setup.path("pid")));
    let inside = setup.open().await;
    for tool in ["add_server", "remove_server"] {
        let fault = fault(&inside, &inside.caller, tool, &params).await;
        assert_eq!(fault["code"], "forbidden", "{fault}");
        let message = fault["message"].as_str().expect("a message");
        assert!(
            message.contains("allow_runtime_servers = true") && message.contains("servers.toml"),
            "{message}"
        );
    }
    let found = inside.answer("browse_category", json!({ "category": "gateway" })).await.to_string();
    assert!(!found.contains("add_server"), "{found}");
}

#[tokio::test]
async fn what_cannot_be_added_is_refused_before_the_user_is_asked() {
    let setup = Setup::new()
        .gateway(ALLOWED)
        .server("shop", shop())
        .toml("[servers.resting]\ncommand = 'x'\nenabled = false\n[categories.work]\nservers = ['shop']\n")
        .toml("[profiles.guest]\nmax_risk = 'medium'\n[profiles.home]");
    let pid = setup.path("pid");
    let good = server(setup.folder.path(), "music", &music(&pid));
    let inside = setup.open().await;
    let check = async |caller: &Caller, changed: Value, code: &str, said: &str| {
        let mut params = good.clone();
        for (key, value) in changed.as_object().expect("an object") {
            params[key] = value.clone();
        }
        params.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        let fault = fault(&inside, caller, "add_server", &params).await;
        assert_eq!(fault["code"], code, "{changed}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|text| text.contains(said)), "{changed}: {fault}");
        fault
    };
    let me = &inside.caller;
    for (taken, free) in [("shop", "shop-2"), ("resting", "resting-2"), ("work", "work-2")] {
        let fault = check(me, json!({ "name": taken }), "invalid_params", "taken").await;
        assert_eq!(fault["next_step"]["arguments"]["params"]["name"], free, "{fault}");
    }
    let fault = check(me, json!({ "name": "My Music" }), "invalid_params", "`My Music`").await;
    assert_eq!(fault["next_step"]["arguments"]["params"]["name"], "my-music", "{fault}");
    check(me, json!({ "name": "gateway" }), "invalid_params", "reserved by Nonet").await;
    check(me, json!({ "url": "https://example.com/mcp" }), "invalid_params", "cannot have both").await;
    check(me, json!({ "command": null, "args": null }), "invalid_params", "needs").await;
    check(me, json!({ "command": null, "args": null, "url": "ftp://x" }), "invalid_params", "`url`").await;
    check(me, json!({ "env": { "A=B": "x" } }), "invalid_params", "env").await;
    // Keys that the question does not show are refused.
    for hidden in [
        json!({ "cwd": "/" }),
        json!({ "inherit_env": ["*"] }),
        json!({ "setup": [{ "tool": "who" }] }),
        json!({ "policy": "allow" }),
    ] {
        let key = hidden.as_object().and_then(|keys| keys.keys().next()).expect("a key").clone();
        check(me, hidden, "invalid_params", &key).await;
    }
    check(me, json!({ "args": vec!["x".repeat(3_000); 6] }), "invalid_params", "bytes").await;
    check(&lasting(&inside, Some("guest")), json!({}), "forbidden", "profiles.guest.max_risk").await;
    let home = lasting(&inside, Some("home"));
    check(&home, json!({ "persist": true }), "forbidden", "profile").await;
    let fleeting = Caller { lasting: false, ..lasting(&inside, None) };
    let fault = check(&fleeting, json!({}), "forbidden", "no session").await;
    assert_eq!(fault["next_step"]["arguments"]["params"]["persist"], true, "{fault}");
    assert!(!pid.exists(), "nothing was started");
}

#[tokio::test]
async fn a_command_line_is_shown_and_run_as_its_words() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let pid = setup.path("pid");
    let mut params = server(setup.folder.path(), "music", &music(&pid));
    let words = params["args"].as_array().expect("args").iter().filter_map(Value::as_str);
    let line: Vec<&str> =
        std::iter::once(params["command"].as_str().expect("a command")).chain(words).collect();
    let line = line.join(" ");
    params = json!({ "name": "music", "command": line });
    let inside = setup.open().await;
    let asked = fault(&inside, &inside.caller, "add_server", &params).await;
    let waiting = inside.gateway.asking.approvals.waiting().await.expect("it is read");
    assert!(waiting.iter().any(|one| one.asked.question.contains(&format!("\n\n{line}\n"))), "{waiting:?}");
    let again = decided(&inside, &asked).await;
    let added = inside.call("execute_tool", again).await;
    assert_eq!(json_of(&added)["state"], "ready", "{added}");
}

#[tokio::test]
async fn nothing_but_the_user_lets_a_server_in() {
    let rules = "[policies.free]\ntools = ['gateway.*', '*']\npolicy = 'allow'";
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop()).toml(rules);
    let pid = setup.path("pid");
    let params = server(setup.folder.path(), "music", &music(&pid));
    let inside = setup.open().await;
    // An answer for the whole session counts only for one call.
    let named = json!({ "name": "music" });
    added(&inside, &inside.caller, &params).await;
    assert_eq!(fault(&inside, &inside.caller, "remove_server", &named).await["code"], "needs_approval");
    allowed(&inside, &inside.caller, "remove_server", &named).await;
    assert_eq!(fault(&inside, &inside.caller, "add_server", &params).await["code"], "needs_approval");
    // Unattended runs cannot ask.
    let later = json!({ "name": "gateway.add_server", "params": params, "when": "in 1h" });
    let refused = fault(&inside, &inside.caller, "schedule", &later).await;
    assert_eq!(refused["code"], "needs_approval", "{refused}");

    let rules = "[policies.never]\nrisk = 'high'\npolicy = 'deny'";
    let inside = Setup::new().gateway(ALLOWED).server("shop", shop()).toml(rules).open().await;
    let refused = fault(&inside, &inside.caller, "add_server", &params).await;
    assert_eq!(refused["code"], "forbidden", "{refused}");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("policies.never")), "{refused}");
}

#[tokio::test]
async fn a_server_that_does_not_start_is_told_with_its_stderr_and_leaves_nothing() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let script = json!({ "exit_at_start": 3, "stderr_lines": ["no licence for s3cret-value here"] });
    let mut params = server(setup.folder.path(), "music", &script);
    params["env"] = json!({ "LICENCE": "s3cret-value" });
    let inside = setup.open().await;
    let result = allowed(&inside, &inside.caller, "add_server", &params).await;
    let fault = &json_of(&result)["error"];
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("server_down"), &json!(false)), "{fault}");
    assert_eq!(fault["details"]["stderr"], json!(["no licence for *** here"]), "{fault}");
    until_forgotten(&inside, "music").await;
    assert!(!inside.gateway.servers.connections().contains_key("music"));
    let missing = json!({ "name": "music", "command": "/no/such/program" });
    let result = allowed(&inside, &inside.caller, "add_server", &missing).await;
    assert_eq!(json_of(&result)["error"]["code"], "server_down", "{result}");
}

#[tokio::test]
async fn a_session_has_eight_servers_at_most() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let folder = setup.folder.path().to_path_buf();
    let inside = setup.open().await;
    for number in 0..8 {
        added(&inside, &inside.caller, &server(&folder, &format!("s{number}"), &shop())).await;
    }
    let ninth = server(&folder, "ninth", &shop());
    let refused = fault(&inside, &inside.caller, "add_server", &ninth).await;
    assert_eq!(refused["code"], "forbidden", "{refused}");
    added(&inside, &lasting(&inside, None), &ninth).await;
}

#[tokio::test]
async fn a_profile_holds_for_what_its_session_adds() {
    let setup = Setup::new()
        .gateway(ALLOWED)
        .server("shop", shop())
        .toml("[profiles.only]\nonly = ['shop.*', 'gateway.add_server']\n[profiles.one]\nonly = ['shop.*', 'music.play_*', 'gateway.add_server']\n\
               [profiles.tagged]\ntags = ['tunes']\nallow = ['gateway.add_server']");
    let mut params = server(setup.folder.path(), "music", &music(&setup.path("pid")));
    params["tags"] = json!(["tunes"]);
    let inside = setup.open().await;
    // A client cannot bypass its profile with its own tags.
    for profile in ["only", "tagged"] {
        let limited = lasting(&inside, Some(profile));
        let answer = added(&inside, &limited, &params).await;
        assert_eq!((&answer["state"], &answer["tools"]), (&json!("ready"), &json!(0)), "{answer}");
        assert!(answer["hint"].as_str().is_some_and(|hint| hint.contains("profile")), "{answer}");
        drop(limited);
        until_forgotten(&inside, "music").await;
    }
    let limited = lasting(&inside, Some("one"));
    assert_eq!(added(&inside, &limited, &params).await["tools"], 1);
    let other = lasting(&inside, Some("one"));
    let query = json!({ "query": "play a song" });
    let found = answer_as(&inside, &limited, "search_tools", query.clone()).await;
    assert_eq!(found["results"][0]["name"], "music.play_song", "{found}");
    let found = answer_as(&inside, &other, "search_tools", query).await.to_string();
    assert!(!found.contains("music"), "{found}");
}

#[tokio::test]
async fn a_rest_service_is_added_by_its_document() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let document = setup.path("weather.json");
    let get = json!({ "get": {
        "operationId": "forecast", "summary": "The weather of tomorrow", "responses": { "200": { "description": "It" } },
    } });
    let info = json!({ "title": "Weather", "version": "1" });
    let servers = json!([{ "url": "http://127.0.0.1:9" }]);
    let text = json!({ "openapi": "3.0.0", "info": info, "servers": servers, "paths": { "/forecast": get } });
    fs::write(&document, text.to_string()).expect("the document can be written");
    let inside = setup.open().await;
    let params = json!({ "name": "weather", "openapi": document, "headers": { "X-Key": "s3cret-value" }, "tags": ["outdoors"] });
    let asked = fault(&inside, &inside.caller, "add_server", &params).await;
    let waiting = inside.gateway.asking.approvals.waiting().await.expect("readable");
    let question = &waiting[0].asked.question;
    assert!(question.contains("weather.json") && question.contains("X-Key=***"), "{question}");
    let again = decided(&inside, &asked).await;
    let answer = inside.answer("execute_tool", again).await;
    assert_eq!((&answer["state"], &answer["tools"]), (&json!("ready"), &json!(1)), "{answer}");
    let found = inside.answer("search_tools", json!({ "query": "the weather of tomorrow" })).await;
    assert_eq!(found["results"][0]["name"], "weather.forecast", "{found}");
    let found = inside.answer("search_tools", json!({ "tags": ["outdoors"] })).await;
    assert_eq!(found["tools"][0]["name"], "weather.forecast", "{found}");
}

#[test]
fn a_token_of_a_narrow_profile_neither_sees_nor_calls_what_changes_the_gateway() {
    let profiles = [
        ("only", "only = ['shop.look']"),
        ("categories", "categories = ['shop']"),
        ("tags", "tags = ['none']"),
        ("allow", "allow = ['shop.look', 'gateway.*']"),
        ("deny", "deny = ['shop.look']"),
        ("max_risk", "max_risk = 'low'"),
        ("named", "only = ['shop.look', 'gateway.add_server']"),
        ("added", "categories = ['shop']\nmax_risk = 'low'\nallow = ['gateway.add_server']"),
        ("free", "pinned = ['shop.look']"),
    ];
    let token = |profile: &str| format!("token-of-{profile}-0123456789");
    let tables =
        profiles.map(|(name, keys)| format!("[profiles.{name}]\n{keys}\ntokens = ['{}']\n", token(name)));
    let site = Setup::new().gateway(ALLOWED).server("shop", shop()).toml(&tables.concat()).serve();
    WebClient::with_token(&site.address, "/mcp", &token("free")).until_ready("shop");
    for (name, _) in profiles {
        let mut client = WebClient::with_token(&site.address, "/mcp", &token(name));
        let mut fault =
            |tool: &str, params: Value| client.answer("execute_tool", own(tool, &params))["error"].take();
        let added = fault("add_server", json!({ "name": "more", "command": "true" }));
        let removed = fault("remove_server", json!({ "name": "shop" }));
        let rule = |fault: &Value| {
            fault["message"].as_str().is_some_and(|text| text.contains(&format!("profiles.{name}.")))
        };
        let listed =
            client.answer("browse_category", json!({ "category": "gateway", "page_size": 100 })).to_string();
        let found =
            client.answer("search_tools", json!({ "query": "add an MCP server", "limit": 20 })).to_string();
        match name {
            "named" | "added" | "free" => {
                assert_eq!(added["code"], "needs_approval", "{name}: {added}");
                assert!(
                    listed.contains("gateway.add_server") && found.contains("gateway.add_server"),
                    "{name}"
                );
            }
            _ => {
                assert_eq!(added["code"], "forbidden", "{name}: {added}");
                assert!(rule(&added), "{name}: {added}");
                for tool in ["add_server\"", "remove_server\""] {
                    assert!(!listed.contains(tool) && !found.contains(tool), "{name}: {listed} {found}");
                }
            }
        }
        assert_eq!(removed["code"], "forbidden", "{name}: {removed}");
        assert_eq!(rule(&removed), name != "free", "{name}: {removed}");
        // What stays in the caller's own session is open to every profile.
        for tool in ["background_run", "fetch_result", "load_tools", "schedule", "watch_start", "remember"] {
            assert!(listed.contains(&format!("gateway.{tool}\"")), "{name}: {tool}");
        }
    }
}

#[tokio::test]
async fn the_words_of_the_model_never_approve_a_server() {
    let setup = Setup::new().gateway(&format!("{ALLOWED}\napprove_by = 'chat'")).server("shop", shop());
    let inside = setup.open().await;
    let params = json!({ "name": "more", "command": "true" });
    let asked = fault(&inside, &inside.caller, "add_server", &params).await;
    assert_eq!(
        (&asked["code"], &asked["next_step"]["tool"]),
        (&json!("needs_approval"), &json!("execute_tool"))
    );
    assert!(!asked.to_string().contains("ask-"), "no token that a model could answer: {asked}");
    let said = json!({ "token": asked["details"]["approval"], "answer": "allow" });
    assert_eq!(inside.fault("ask_user", said).await["code"], "not_found");
    assert_eq!(inside.gateway.asking.approvals.waiting().await.expect("readable").len(), 1, "it still waits");
}

#[tokio::test]
async fn what_runs_later_does_not_use_a_server_of_a_session() {
    let setup = Setup::new().gateway(ALLOWED).server("shop", shop());
    let params = server(setup.folder.path(), "music", &music(&setup.path("pid")));
    let inside = setup.open().await;
    added(&inside, &inside.caller, &params).await;
    for (tool, more) in [("watch_start", json!({})), ("schedule", json!({ "when": "in 1h" }))] {
        let mut params = more;
        params["name"] = json!("music.who");
        let refused = fault(&inside, &inside.caller, tool, &params).await;
        assert_eq!(refused["code"], "forbidden", "{tool}: {refused}");
        assert!(
            refused["message"].as_str().is_some_and(|text| text.contains("persist")),
            "{tool}: {refused}"
        );
    }
}

/// Returns a client whose user allows everything in a form.
fn trusting(setup: Setup) -> Client {
    let mut client = setup.start_program_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow" } }));
    client
}

fn toml_of(client: &Client) -> PathBuf {
    client.folder.path().join("servers.toml")
}

#[test]
fn the_user_reads_the_whole_command_and_no_secret() {
    let mut client = trusting(Setup::new().gateway(ALLOWED).server("shop", shop()));
    client.until_ready("shop");
    let mut params = server(client.folder.path(), "music", &shop());
    let file = client.folder.path().join("music.script.json");
    let script = format!("exec {} --script-file {}", fake_server().display(), file.display());
    let long = "x".repeat(3_000);
    params["command"] = json!("sh");
    params["args"] = json!(["-c", script]);
    let args = params["args"].as_array_mut().expect("a list");
    args.extend([json!("it's here"), json!("${HOME}"), json!(long), json!("a\nb"), json!("end")]);
    params["env"] = json!({ "API_TOKEN": "s3cret-value", "NODE_OPTIONS": "--require /opt/x.js" });
    params["tags"] = json!(["tunes"]);
    let result = client.execute("gateway.add_server", params.clone());
    assert_eq!(json_of(&result)["state"], "ready", "{result}");
    let question = client.asked[0]["message"].as_str().expect("a message").to_string();
    let command = format!("sh -c '{script}' 'it'\\''s here' '${{HOME}}' {long} $'a\\nb' end\n");
    assert!(question.contains(&command), "{question}");
    assert!(question.contains("API_TOKEN=***") && question.contains("tunes"), "{question}");
    // A variable may determine what runs.
    assert!(question.contains("NODE_OPTIONS='--require /opt/x.js'"), "{question}");
    assert!(!question.contains("s3cret"), "{question}");
    let choices = &client.asked[0]["requestedSchema"]["properties"]["decision"]["enum"];
    assert_eq!(choices, &json!(["allow", "deny"]));
    let remote =
        json!({ "name": "far", "url": "http://127.0.0.1:9/mcp?x=1", "headers": { "X-Key": "s3cret-value" } });
    let fault = client.fault("gateway.add_server", remote);
    assert_eq!(fault["code"], "server_down", "{fault}");
    let question = client.asked[1]["message"].as_str().expect("a message");
    assert!(question.contains("http://127.0.0.1:9/mcp?x=1") && question.contains("X-Key=***"), "{question}");
    assert!(!question.contains("s3cret"), "{question}");

    client.answer_questions(|_| json!({ "action": "decline" }));
    params["name"] = json!("music-2");
    assert_eq!(client.fault("gateway.add_server", params)["code"], "forbidden");
}

#[test]
fn a_reload_keeps_a_session_server_unless_the_file_has_its_name() {
    let mut client = trusting(Setup::new().gateway(ALLOWED).server("shop", shop()));
    client.until_ready("shop");
    let pid = client.folder.path().join("pid");
    let params = server(client.folder.path(), "music", &music(&pid));
    client.execute("gateway.add_server", params.clone());
    let who = |client: &mut Client| json_of(&client.execute("music.who", json!({})))["pid"].clone();
    let before = who(&mut client);
    let file = toml_of(&client);
    let edit = |change: &str| {
        let text = fs::read_to_string(&file).expect("it is there");
        fs::write(&file, format!("{text}\n{change}\n")).expect("it can be written");
    };
    edit("[servers.other]\ncommand = 'x'\n[categories.fun]\ntools = ['music.*']");
    client.until_notice("config_changed");
    assert_eq!(who(&mut client), before, "the same process");
    edit(&format!("[servers.music]\ncommand = '{}'\nargs = ['--script', '{{}}']", fake_server().display()));
    let notice = client.until_notice("server_replaced");
    assert_eq!(notice["server"], "music", "{notice}");
    client.until("music", "ready");
    setup::eventually("the old process has ended", || {
        is_gone(&fs::read_to_string(&pid).expect("it has started")).then_some(())
    });
    assert_eq!(client.fault("music.who", json!({}))["code"], "unknown_tool");
}

#[test]
fn a_server_that_wants_a_sign_in_can_only_be_persisted() {
    let service = Service::start(Manner::default());
    let mut client = trusting(Setup::new().gateway(ALLOWED).server("shop", shop()));
    client.until_ready("shop");
    let mut params = json!({ "name": "far", "url": service.url() });
    let fault = client.fault("gateway.add_server", params.clone());
    assert_eq!(fault["code"], "auth_required", "{fault}");
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("`persist`")), "{fault}");
    // `nonet login` does not know servers of a session.
    assert!(client.notices.iter().all(|notice| notice["kind"] != "sign_in_needed"), "{:?}", client.notices);
    params["persist"] = json!(true);
    let answer = json_of(&client.execute("gateway.add_server", params));
    assert_eq!(answer["state"], "auth_required", "{answer}");
    assert!(answer["hint"].as_str().is_some_and(|hint| hint.contains("login far")), "{answer}");
}

#[test]
fn servers_of_sessions_end_when_the_file_no_longer_allows_them() {
    let mut client = trusting(Setup::new().gateway(ALLOWED).server("shop", shop()));
    client.until_ready("shop");
    let pid = client.folder.path().join("pid");
    client.execute("gateway.add_server", server(client.folder.path(), "music", &music(&pid)));
    let process = fs::read_to_string(&pid).expect("it has started");
    let file = toml_of(&client);
    let text = fs::read_to_string(&file).expect("it is there");
    let text = text.replace(ALLOWED, "allow_runtime_servers = false");
    fs::write(&file, format!("{text}\n[servers.other]\ncommand = 'x'\n")).expect("it can be written");
    let notice = client.until_notice("server_removed");
    assert_eq!(notice["server"], "music", "{notice}");
    let changed = client.until_notice("config_changed");
    assert!(!changed.to_string().contains("music"), "{changed}");
    setup::eventually("its process has ended", || is_gone(&process).then_some(()));
    setup::eventually("its tools are gone", || {
        (client.fault("music.who", json!({}))["code"] == "unknown_tool").then_some(())
    });
}

#[test]
fn a_server_that_is_to_stay_goes_into_the_file_and_can_be_removed_again() {
    let comment =
        "# What I have\n[servers.mine]   # keep this one\ncommand = 'x'\nenabled = false\n# the end\n";
    let mut client = trusting(Setup::new().gateway(ALLOWED).server("shop", shop()).toml(comment));
    client.until_ready("shop");
    let file = toml_of(&client);
    let before = fs::read_to_string(&file).expect("it is there");
    let pid = client.folder.path().join("pid");
    let script = json!({ "tools": [{ "name": "env", "on": { "env": true } }], "pid_file": pid });
    let mut params = server(client.folder.path(), "music", &script);
    params["env"] = json!({ "PLACE": "${HOME} and $${HOME}", "API_TOKEN": "s3cret-value-0123456789" });
    params["tags"] = json!(["tunes"]);
    params["persist"] = json!(true);
    let answer = json_of(&client.execute("gateway.add_server", params.clone()));
    assert_eq!((&answer["state"], &answer["tools"]), (&json!("ready"), &json!(1)), "{answer}");
    let question = client.asked[0]["message"].as_str().expect("a message");
    assert!(question.contains("servers.toml, for all clients"), "{question}");
    let process = fs::read_to_string(&pid).expect("it has started");

    let after = fs::read_to_string(&file).expect("it is there");
    assert!(after.contains("# What I have\n[servers.mine]   # keep this one\n"), "{after}");
    assert!(after.contains("# Added by a client with gateway.add_server.\n[servers.music]\n"), "{after}");
    assert!(after.contains("$${HOME} and $$${HOME}") && !after.contains("s3cret"), "{after}");
    // The file has the same meaning as the trial, so the process continued.
    assert!(!is_gone(&process));
    let env = json_of(&client.execute("music.env", json!({})))["env"].clone();
    assert_eq!(env["PLACE"], "${HOME} and $${HOME}");
    // The server gets its secret, which no answer shows.
    assert_eq!(env["API_TOKEN"], "***");
    // The server is now available to every client.
    let mut second = client.restart();
    second.answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow" } }));
    second.initialize("2025-06-18", json!({ "elicitation": {} }));
    second.until_ready("music");
    let taken = second.fault("gateway.add_server", params);
    assert_eq!(taken["code"], "invalid_params", "{taken}");

    for name in ["shop", "mine"] {
        let fault = second.fault("gateway.remove_server", json!({ "name": name }));
        assert_eq!(fault["code"], "forbidden", "{fault}");
    }
    let process = fs::read_to_string(&pid).expect("it has started");
    let removed = json_of(&second.execute("gateway.remove_server", json!({ "name": "music" })));
    assert_eq!(removed["state"], "removed", "{removed}");
    assert!(removed["hint"].as_str().is_some_and(|hint| hint.contains("API_TOKEN")), "{removed}");
    assert_eq!(fs::read_to_string(&file).expect("it is there").trim_end(), before.trim_end());
    setup::eventually("its process has ended", || is_gone(&process).then_some(()));
    assert_eq!(second.fault("music.env", json!({}))["code"], "unknown_tool");
}

#[test]
fn what_does_not_work_is_not_written() {
    let mut client = trusting(Setup::new().gateway(ALLOWED).server("shop", shop()));
    client.until_ready("shop");
    let before = fs::read_to_string(toml_of(&client)).expect("it is there");
    let params = json!({ "name": "music", "command": "/no/such/program", "persist": true });
    let fault = client.fault("gateway.add_server", params);
    assert!(
        fault["message"].as_str().is_some_and(|text| text.contains("servers.toml was not changed")),
        "{fault}"
    );
    assert_eq!(fs::read_to_string(toml_of(&client)).expect("it is there"), before);
}

#[test]
fn a_session_over_http_has_its_own_servers_and_a_request_without_one_has_none() {
    let site = Setup::new().gateway(ALLOWED).server("shop", shop()).serve_program();
    let folder = site.folder.path().to_path_buf();
    let pid = folder.join("pid");
    let params = server(&folder, "music", &music(&pid));
    let call = json!({ "name": "execute_tool", "arguments": own("add_server", &params) });
    let refused = modern(&site.address, "tools/call", call).result();
    let fault = &json_of(&refused)["error"];
    assert_eq!(fault["code"], "forbidden", "{fault}");
    assert_eq!(fault["next_step"]["arguments"]["params"]["persist"], true, "{fault}");

    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    let asked = client.answer("execute_tool", own("add_server", &params));
    let id = asked["error"]["details"]["approval"].as_str().unwrap_or_else(|| panic!("no approval: {asked}"));
    assert!(command(&folder).args(["approve", id]).status().expect("nonet runs").success());
    assert_eq!(client.answer("execute_tool", own("add_server", &params))["state"], "ready");
    let mut other = WebClient::new(&site.address, "/mcp");
    assert!(!other.answer("list_categories", json!({})).to_string().contains("music"));
    assert!(client.answer("list_categories", json!({})).to_string().contains("music"));
    let process = fs::read_to_string(&pid).expect("it has started");
    let session = [("mcp-session-id", client.session.as_str())];
    crate::web::http(&site.address, "DELETE", "/mcp", &session, "");
    setup::eventually("its process has ended", || is_gone(&process).then_some(()));
}

#[test]
fn the_setup_of_a_server_is_made_before_its_list_counts() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "open", "on": { "grow": "opened" } }, { "name": "look" }]);
    let keys = "[[servers.shop.setup]]\ntool = 'open'\nparams = { path = '~/shop' }\n\
                [[servers.shop.setup]]\ntool = 'no_such_tool'\noptional = true";
    let setup = setup.server_with("shop", json!({ "tools": tools, "call_log": log }), keys);
    let failing = "[[servers.bad.setup]]\ntool = 'fails'";
    let script = json!({ "tools": [{ "name": "fails", "on": { "error": "no project here" } }] });
    let mut client = setup.server_with("bad", script, failing).start_program();
    client.until_ready("shop");
    assert_eq!(setup::logged(&log)[0]["params"]["arguments"], json!({ "path": "~/shop" }));
    let page = client.answer("browse_category", json!({ "category": "shop" }));
    assert_eq!(page["total"], 3, "{page}");
    let down = client.until("bad", "down");
    assert!(
        down["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("its setup call `fails` failed: no project here")),
        "{down}"
    );
    let stderr = client.stderr();
    assert!(
        stderr.contains("its setup call `no_such_tool` names a tool that the server does not have"),
        "{stderr}"
    );
}
