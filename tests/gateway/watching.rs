//! Watches: tools called repeatedly, and notices of changes.

use std::{cell::RefCell, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use nonet_base::clock::Clock;
use nonet_config as config;
use nonet_state::session::Caller;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    inside::{Inside, eventually},
    setup::{self, Setup, json_of, logged, notices_of},
};

/// A gateway whose clock the test controls.
struct WatchGateway {
    inside: Inside,
    clock: Clock,
    state: TempDir,
    /// Notices of watches received with any answer.
    notices: RefCell<Vec<Value>>,
}

impl WatchGateway {
    async fn open(setup: Setup) -> Self {
        let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
        let inside = setup.open_with_clock(&clock, state.path()).await;
        Self { inside, clock, state, notices: RefCell::default() }
    }

    /// Starts a watch. Returns its id.
    async fn start(&self, params: Value) -> Value {
        let answer = json_of(&self.call("gateway.watch_start", params).await);
        assert_eq!(answer["state"], "active", "{answer}");
        answer["watcher_id"].clone()
    }

    async fn own(&self, tool: &str, id: &Value) -> Value {
        json_of(&self.call(&format!("gateway.{tool}"), json!({ "watcher_id": id })).await)
    }

    /// Runs a tool, and collects the notices from its answer.
    async fn call(&self, tool: &str, params: Value) -> Value {
        let result = self.inside.execute(tool, params).await;
        let notices = notices_of(&result).into_iter().filter(|notice| notice["kind"] == "watch");
        self.notices.borrow_mut().extend(notices);
        result
    }

    async fn checks(&self, id: &Value) -> u64 {
        self.own("watch_status", id).await["counts"]["checks"].as_u64().expect("a number")
    }

    async fn until_checked(&self, id: &Value, checks: u64) {
        eventually("the check is made", async || (self.checks(id).await >= checks).then_some(())).await;
    }

    /// Advances to the next check, and waits until it was made.
    async fn check(&self, id: &Value) {
        let before = self.checks(id).await;
        self.clock.advance(Duration::from_secs(30));
        self.until_checked(id, before + 1).await;
    }

    /// Returns the notices of watches since the last call.
    async fn told(&self) -> Vec<Value> {
        self.call("gateway.status", json!({})).await;
        self.notices.take()
    }

    /// Makes this many checks. Returns the reason of the notice after each, `-` for none.
    async fn whys(&self, id: &Value, checks: usize) -> String {
        let mut whys = Vec::new();
        for _ in 0..checks {
            self.check(id).await;
            let told = self.told().await;
            assert!(told.len() <= 1, "{told:?}");
            whys.push(told.first().map_or("-".into(), |n| n["why"].as_str().expect("a word").to_string()));
        }
        whys.join(" ")
    }
}

/// Returns a server with one tool that behaves like this.
fn server(on: Value) -> Setup {
    Setup::new().server(
        "files",
        json!({ "tools": [{ "name": "read_file", "description": "Reads a file", "on": on }] }),
    )
}

#[tokio::test]
async fn tell_me_when_this_file_changes() {
    let on = json!([{ "text": "one" }, { "text": "one" }, { "text": "two" }]);
    let watched = WatchGateway::open(server(on)).await;
    let inside = &watched.inside;
    let found = inside.answer("search_tools", json!({ "query": "tell me when this file changes" })).await;
    let names: Vec<&Value> =
        found["results"].as_array().expect("hits").iter().map(|hit| &hit["name"]).collect();
    assert!(names.contains(&&json!("gateway.watch_start")), "{found}");
    let tool = inside.answer("get_tool", json!({ "name": "gateway.watch_start" })).await;
    assert_eq!(tool["input_schema"]["required"], json!(["name"]), "{tool}");

    let params = json!({ "tool": "files.read_file", "params": { "path": "/notes" }, "label": "notes" });
    let started = json_of(&inside.execute("gateway.watch_start", params).await);
    assert_eq!((&started["state"], &started["value"]), (&json!("active"), &json!("one")), "{started}");
    assert!(started["next_check_at"].as_str().is_some_and(|at| at.len() == 25), "{started}");
    assert!(started.get("note").is_none(), "{started}");
    // The offered call works as it is.
    let status = inside.answer("execute_tool", started["next_step"]["arguments"].clone()).await;
    assert_eq!(status["counts"], json!({ "checks": 1, "changes": 0, "errors": 0 }), "{status}");

    let id = &started["watcher_id"];
    watched.check(id).await;
    assert_eq!(watched.told().await, [Value::Null; 0]);
    watched.check(id).await;
    let told = watched.told().await;
    let notice = &told[0];
    assert_eq!(
        (&notice["watcher_id"], &notice["label"], &notice["why"]),
        (id, &json!("notes"), &json!("changed"))
    );
    assert_eq!(
        (&notice["before"], &notice["value"], &notice["checks"]),
        (&json!("one"), &json!("two"), &json!(3))
    );
    assert!(notice["next_step"].is_object(), "{notice}");
    assert_eq!(watched.told().await, [Value::Null; 0], "once");

    let history = watched.own("watch_history", id).await;
    let changed: Vec<&Value> =
        history["checks"].as_array().expect("checks").iter().map(|one| &one["changed"]).collect();
    assert_eq!(changed, [&json!(true), &json!(false), &json!(false)], "newest first: {history}");
    let stopped = watched.own("watch_stop", id).await;
    assert_eq!(stopped["state"], "stopped", "{stopped}");
    let list = json_of(&inside.execute("gateway.watch_list", json!({})).await);
    assert_eq!(list, json!({ "watches": [], "total": 0 }));
}

#[tokio::test]
async fn a_watch_tells_what_it_was_asked_to_tell() {
    let rows =
        |n: usize| json!({ "result": { "content": [], "structuredContent": { "count": n, "at": n * 7 } } });
    let error = json!({ "error": "out of order" });
    for (on, config, expected) in [
        (json!([rows(1), error, error, rows(1)]), json!({ "notify_when": "on_error" }), "failed - recovered"),
        (
            json!([rows(1), rows(5), rows(6), rows(1), rows(5)]),
            json!({ "notify_when": "on_threshold", "notify_config": { "expression": ".result.count > 4" } }),
            "threshold_reached - - threshold_reached",
        ),
        (
            json!([rows(1), error, rows(2)]),
            json!({ "notify_when": "summary", "notify_config": { "batch_size": 3 } }),
            "- summary - - summary",
        ),
        (json!([rows(1), error]), json!({ "notify_when": "always", "max_checks": 3 }), "checked checked"),
        (json!([rows(1), rows(2), rows(3)]), json!({ "select": ".count > 2" }), "- changed -"),
        (json!([rows(1)]), json!({ "max_checks": 2 }), "finished"),
    ] {
        let watched = WatchGateway::open(server(on)).await;
        let mut params = config.clone();
        params["name"] = json!("files.read_file");
        let id = watched.start(params).await;
        let checks = expected.split(' ').count();
        assert_eq!(watched.whys(&id, checks).await, expected, "{config}");
    }
}

#[tokio::test]
async fn a_large_value_is_told_by_its_reference() {
    let on = json!([{ "text": "small" }, { "json_rows": 200 }]);
    let watched = WatchGateway::open(server(on)).await;
    let id = watched.start(json!({ "name": "files.read_file" })).await;
    watched.check(&id).await;
    let notice = watched.told().await.pop().expect("a notice");
    assert!(notice.get("value").is_none() && notice.to_string().len() < 2_000, "{notice}");
    let page = watched.inside.answer("execute_tool", notice["next_step"]["arguments"].clone()).await;
    assert_eq!(page["total"], 200, "{page}");
}

#[tokio::test]
async fn a_server_that_is_down_is_an_error_of_the_check_and_told_once() {
    let watched = WatchGateway::open(server(json!([{ "text": "up" }, { "crash": true }]))).await;
    let id = watched.start(json!({ "name": "files.read_file", "notify_when": "on_error" })).await;
    watched.check(&id).await;
    let notice = watched.told().await.pop().expect("a notice");
    assert_eq!(
        (&notice["why"], &notice["error"]["code"]),
        (&json!("failed"), &json!("server_down")),
        "{notice}"
    );
    // The next process of the server answers again.
    watched.inside.until("files", "ready").await;
    watched.check(&id).await;
    let notice = watched.told().await.pop().expect("a notice");
    assert_eq!((&notice["why"], &notice["value"]), (&json!("recovered"), &json!("up")), "{notice}");
}

#[tokio::test]
async fn five_failures_in_a_row_pause_a_watch_until_it_is_resumed() {
    let watched = WatchGateway::open(server(json!([{ "text": "up" }, { "error": "out of order" }]))).await;
    let id = watched.start(json!({ "name": "files.read_file" })).await;
    assert_eq!(watched.whys(&id, 5).await, "- - - - paused");
    let status = watched.own("watch_status", &id).await;
    assert_eq!((&status["state"], &status["next_check_at"]), (&json!("paused"), &Value::Null), "{status}");
    watched.clock.advance(Duration::from_secs(3_600));
    let resumed = watched.own("watch_resume", &id).await;
    assert_eq!(resumed["state"], "active", "{resumed}");
    watched.until_checked(&id, 7).await;
    let paused = watched.own("watch_pause", &id).await;
    assert_eq!(paused["state"], "paused", "{paused}");
    let resumed = watched.inside.answer("execute_tool", paused["next_step"]["arguments"].clone()).await;
    assert_eq!(resumed["state"], "active", "{resumed}");
}

#[tokio::test]
async fn tell_me_when_it_is_up_again() {
    let (error, up) = (json!({ "error": "503" }), json!({ "text": "up" }));
    let failing = |times: usize| {
        let on: Vec<&Value> = std::iter::repeat_n(&error, times).chain([&up]).collect();
        server(json!(on))
    };
    // Five failures in a row do not end the wait, and the failure at the start is no obstacle.
    for (config, expected) in [
        (json!({ "notify_when": "on_error" }), "- - - - - - recovered -"),
        (json!({}), "- - - - - - recovered -"),
        (
            json!({ "notify_config": { "expression": ".result == \"up\"" } }),
            "- - - - - - threshold_reached -",
        ),
    ] {
        let watched = WatchGateway::open(failing(7)).await;
        let mut params = config.clone();
        params["name"] = json!("files.read_file");
        let started = json_of(&watched.inside.execute("gateway.watch_start", params).await);
        assert_eq!((&started["state"], &started["error"]["message"]), (&json!("active"), &json!("503")));
        assert!(
            started["hint"].as_str().is_some_and(|hint| hint.contains("stop it if its params are wrong"))
        );
        assert_eq!(watched.whys(&started["watcher_id"], 8).await, expected, "{config}");
    }
    // Later failures, with a value before them.
    let on = json!([up, error, error, error, error, error, error, up]);
    let watched = WatchGateway::open(server(on)).await;
    let id = watched.start(json!({ "name": "files.read_file", "notify_when": "on_error" })).await;
    assert_eq!(watched.whys(&id, 7).await, "failed - - - - - recovered");
    // A server that dies at the first check.
    let watched = WatchGateway::open(server(json!({ "crash": true }))).await;
    let started = json!({ "name": "files.read_file", "notify_when": "on_error" });
    let started = json_of(&watched.inside.execute("gateway.watch_start", started).await);
    assert_eq!(
        (&started["state"], &started["error"]["code"]),
        (&json!("active"), &json!("server_down")),
        "{started}"
    );
    // Filters are read although there is no value yet.
    let watched = WatchGateway::open(failing(1)).await;
    let wrong = json!({ "name": "files.read_file", "select": ".[" });
    let fault = watched.inside.fault("gateway.watch_start", wrong).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
}

#[tokio::test]
async fn an_interval_may_be_said_in_words() {
    let watched = WatchGateway::open(server(json!({ "text": "same" }))).await;
    let params = json!({ "name": "files.read_file", "interval": "every two minutes" });
    let started = json_of(&watched.call("gateway.watch_start", params).await);
    let status = watched.own("watch_status", &started["watcher_id"]).await;
    assert_eq!(status["interval"], 120, "{status}");
    let params = json!({ "name": "files.read_file", "interval": "soon" });
    let fault = watched.inside.fault("gateway.watch_start", params).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    assert!(fault.to_string().contains("every two minutes"), "{fault}");
}

#[tokio::test]
async fn the_policy_is_asked_at_each_check() {
    let look = || server(json!({ "text": "same" }));
    let watched = WatchGateway::open(look()).await;
    let id = watched.start(json!({ "name": "files.read_file", "notify_when": "always" })).await;
    let rule = |policy: &str| look().toml(&format!("[servers.files.tools.read_file]\npolicy = '{policy}'"));
    for (setup, code) in
        [(rule("approve"), "needs_approval"), (rule("deny"), "forbidden"), (Setup::new(), "unknown_tool")]
    {
        let text = setup.text(|_, _| "command = 'true'".into());
        let loaded =
            config::parse(&text, &setup.path("servers.toml"), config::ValueSources::NONE).expect("usable");
        watched.inside.gateway.reload(loaded.config).await;
        watched.inside.gateway.publisher.published().await;
        watched.check(&id).await;
        let notice = watched.told().await.pop().expect("a notice");
        assert_eq!(notice["error"]["code"], code, "{notice}");
    }
}

/// Returns a watch whose second check takes a while: the check finds another value, unless the watch is
/// stopped or paused meanwhile.
async fn in_the_middle_of_a_check(tool: &str) -> (WatchGateway, Value) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let on = json!([{ "text": "one" }, { "delay_ms": 1_500, "text": "two" }]);
    let setup =
        setup.server("files", json!({ "tools": [{ "name": "read_file", "on": on }], "call_log": log }));
    let watched = WatchGateway::open(setup).await;
    let id = watched.start(json!({ "name": "files.read_file" })).await;
    watched.clock.advance(Duration::from_secs(30));
    eventually("the check is under way", async || (logged(&log).len() == 2).then_some(())).await;
    // By another gateway of the same user.
    let other =
        server(json!({ "text": "other" })).open_with_clock(&watched.clock, watched.state.path()).await;
    let answer = json_of(&other.execute(&format!("gateway.{tool}"), json!({ "watcher_id": id })).await);
    assert_eq!(answer["watcher_id"], id, "{answer}");
    (watched, id)
}

#[tokio::test]
async fn a_pause_in_the_middle_of_a_check_comes_first() {
    let (watched, id) = in_the_middle_of_a_check("watch_pause").await;
    watched.until_checked(&id, 2).await;
    let status = watched.own("watch_status", &id).await;
    assert_eq!((&status["state"], &status["last_value"]), (&json!("paused"), &json!("two")), "{status}");
    assert_eq!(watched.told().await, [Value::Null; 0]);
}

#[tokio::test]
async fn a_stop_in_the_middle_of_a_check_comes_first() {
    let (watched, id) = in_the_middle_of_a_check("watch_stop").await;
    // A second watch of the same server waits behind the check.
    let second = watched.start(json!({ "name": "files.read_file" })).await;
    watched.check(&second).await;
    let list = json_of(&watched.inside.execute("gateway.watch_list", json!({})).await);
    assert_eq!((&list["total"], &list["watches"][0]["watcher_id"]), (&json!(1), &second), "{list}");
    assert!(watched.told().await.iter().all(|notice| notice["watcher_id"] != id));
}

#[tokio::test]
async fn the_clock_may_jump() {
    let watched = WatchGateway::open(server(json!({ "counter": true }))).await;
    let id = watched.start(json!({ "name": "files.read_file" })).await;
    // Forward by a day: one check, not thousands.
    watched.clock.advance(Duration::from_secs(86_400));
    watched.until_checked(&id, 2).await;
    watched.clock.turn_back(Duration::from_secs(2 * 86_400));
    let next = |status: &Value| status["next_check_at"].as_str().expect("a time").to_string();
    let far = next(&watched.own("watch_status", &id).await);
    eventually("the next check comes nearer", async || {
        (next(&watched.own("watch_status", &id).await) < far).then_some(())
    })
    .await;
    watched.check(&id).await;
    assert_eq!(watched.checks(&id).await, 3);
}

#[tokio::test]
async fn what_cannot_be_watched_is_said_at_the_start() {
    let tools = json!([
        { "name": "fine", "on": { "text": "fine" } },
        { "name": "pay" },
        { "name": "hidden" },
        { "name": "strict", "input_schema": { "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] } },
    ]);
    let setup = Setup::new()
        .server("shop", json!({ "tools": tools }))
        .toml("[servers.shop.tools.pay]\npolicy = 'approve'\n[servers.shop.tools.hidden]\npolicy = 'deny'");
    let watched = WatchGateway::open(setup).await;
    let inside = &watched.inside;
    for (params, code, part) in [
        (json!({ "name": "shop.pay" }), "needs_approval", "nobody can be asked"),
        (json!({ "name": "shop.hidden" }), "forbidden", ""),
        (json!({ "name": "shop.nothing" }), "unknown_tool", ""),
        (json!({ "name": "shop.strict" }), "invalid_params", "n"),
        (json!({ "name": "search_tools" }), "invalid_params", "meta-tool"),
        (json!({ "name": "gateway.remind" }), "invalid_params", "only read-only ones"),
        (json!({ "name": "shop.fine", "interval": 4 }), "invalid_params", "5"),
        (json!({ "name": "shop.fine", "interval": 3_601 }), "invalid_params", "3600"),
        (json!({ "name": "shop.fine", "max_checks": 10_001 }), "invalid_params", "10000"),
        (json!({ "name": "shop.fine", "label": "x".repeat(257) }), "invalid_params", "256"),
        (json!({ "name": "shop.fine", "notify_when": "never" }), "invalid_params", "on_error"),
        (json!({ "name": "shop.fine", "notify_when": "on_threshold" }), "invalid_params", "expression"),
        (json!({ "name": "shop.fine", "select": ".[" }), "invalid_params", "not a jq filter"),
        (
            json!({ "name": "shop.fine", "notify_config": { "expression": "nosuch(1)" } }),
            "invalid_params",
            "not known",
        ),
        (json!({ "name": "shop.fine", "params": { "text": "x".repeat(70_000) } }), "invalid_params", "65536"),
    ] {
        let fault = inside.fault("gateway.watch_start", params.clone()).await;
        assert_eq!(fault["code"], code, "{params}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|message| message.contains(part)), "{params}: {fault}");
    }
    for tool in ["watch_stop", "watch_pause", "watch_resume", "watch_status", "watch_history"] {
        let fault = inside.fault(&format!("gateway.{tool}"), json!({ "watcher_id": "watch-0" })).await;
        assert_eq!(fault["code"], "not_found", "{tool}: {fault}");
        let list = inside.answer("execute_tool", fault["next_step"]["arguments"].clone()).await;
        assert_eq!(list["total"], 0, "{list}");
    }
}

#[tokio::test]
async fn an_owner_has_a_hundred_watches_and_sees_only_these() {
    let setup = server(json!({ "text": "same" })).toml("[profiles.other]\ncategories = ['files']");
    let watched = WatchGateway::open(setup).await;
    for n in 0..100 {
        let max_checks = u64::from(n == 40);
        let params =
            json!({ "name": "files.read_file", "label": format!("number {n}"), "max_checks": max_checks });
        let answer = json_of(&watched.inside.execute("gateway.watch_start", params).await);
        assert!(answer["watcher_id"].is_string(), "{answer}");
    }
    // A finished watch makes room.
    let more = json!({ "name": "files.read_file" });
    watched.start(more.clone()).await;
    let fault = watched.inside.fault("gateway.watch_start", more.clone()).await;
    assert!(fault["message"].as_str().is_some_and(|message| message.contains("100 watches")), "{fault}");
    let list = watched.inside.answer("execute_tool", fault["next_step"]["arguments"].clone()).await;
    assert_eq!(list["total"], 100);
    assert!(list["watches"].as_array().expect("watches").iter().all(|one| one["label"] != "number 40"));
    // A label identifies its watch.
    assert_eq!(watched.own("watch_status", &json!("number 7")).await["label"], "number 7");

    let other = watched.inside.under("other");
    let call = json!({ "name": "gateway.watch_start", "params": more });
    let answer = json_of(&watched.inside.call_as(&other, "execute_tool", call).await);
    assert_eq!(answer["state"], "active", "{answer}");
    let call = json!({ "name": "gateway.watch_list" });
    assert_eq!(json_of(&watched.inside.call_as(&other, "execute_tool", call).await)["total"], 1);
}

/// A thousand watches of ten profiles: each check is made exactly once.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_watches_are_checked_once_each() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let script = json!({ "tools": [{ "name": "look", "on": { "text": "same" } }], "call_log": log });
    let profiles: String = (0..10).map(|n| format!("[profiles.p{n}]\ncategories = ['shop']\n")).collect();
    let setup = setup.server_with("shop", script, "parallel = true").toml(&profiles);
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = setup.open_with_clock(&clock, state.path()).await;
    let callers: Vec<Caller> = (0..10).map(|n| inside.under(&format!("p{n}"))).collect();
    let call = json!({ "name": "gateway.watch_start", "params": { "name": "shop.look", "interval": 3_600 } });
    let started = callers.iter().flat_map(|caller| std::iter::repeat_n(caller, 100));
    for caller in started {
        let answer = json_of(&inside.call_as(caller, "execute_tool", call.clone()).await);
        assert!(answer["watcher_id"].is_string(), "{answer}");
    }
    clock.advance(Duration::from_secs(3_600));
    let list = json!({ "name": "gateway.watch_list" });
    for caller in &callers {
        eventually("all are checked", async || {
            let listed = json_of(&inside.call_as(caller, "execute_tool", list.clone()).await);
            let watches = listed["watches"].as_array().expect("watches");
            (watches.len() == 100 && watches.iter().all(|watch| watch["counts"]["checks"] == 2)).then_some(())
        })
        .await;
    }
    assert_eq!(calls(&log), 2_000);
}

#[tokio::test]
async fn a_resource_that_can_be_followed_is_named() {
    let linked = json!({ "result": { "content": [{ "type": "resource_link", "uri": "file:///notes", "name": "notes" }] } });
    let script = json!({
        "tools": [{ "name": "look", "on": linked }, { "name": "other", "on": { "text": "-" } }],
        "resources": [{ "uri": "file:///notes", "name": "notes", "text": "..." }],
    });
    let watched = WatchGateway::open(Setup::new().server("files", script)).await;
    for (params, followed) in [
        (json!({ "name": "files.look" }), true),
        (json!({ "name": "files.other", "params": { "uri": "file:///notes" } }), true),
        (json!({ "name": "gateway.read_resource", "params": { "uri": "file:///notes" } }), true),
        (json!({ "name": "files.other", "params": { "uri": "file:///else" } }), false),
        (json!({ "name": "files.other" }), false),
    ] {
        let answer = json_of(&watched.inside.execute("gateway.watch_start", params.clone()).await);
        let resource = answer.get("resource");
        assert_eq!(resource, followed.then_some(&json!("file:///notes")), "{params}: {answer}");
        assert_eq!(
            answer["hint"].as_str().is_some_and(|hint| hint.contains("resources/subscribe")),
            followed
        );
    }
}

fn calls(log: &Path) -> usize {
    logged(log).iter().filter(|line| line.get("cancelled").is_none()).count()
}

/// A watch continues in another gateway when its own was killed.
#[test]
fn another_gateway_goes_on_with_the_watch_of_one_that_was_killed() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let on = json!([{ "text": "one" }]);
    let script = json!({ "tools": [{ "name": "read_file", "on": on }], "call_log": log });
    let mut client = setup.server("files", script).start_program();
    client.until_ready("files");
    let started = client.answer(
        "execute_tool",
        json!({ "name": "gateway.watch_start", "params": { "name": "files.read_file", "interval": 5, "notify_when": "always" } }),
    );
    assert!(started["note"].as_str().is_some_and(|note| note.contains("shared = true")), "{started}");
    let mut other = client.beside(&[]);
    other.initialize("2025-06-18", json!({}));
    other.until_ready("files");
    let pid = i32::try_from(client.pid()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is there");
    let notice = other.until_notice("watch");
    assert_eq!((&notice["watcher_id"], &notice["checks"]), (&started["watcher_id"], &json!(2)), "{notice}");
    let status =
        json_of(&other.execute("gateway.watch_status", json!({ "watcher_id": started["watcher_id"] })));
    setup::eventually("each check is one call", || {
        (calls(&log) as u64 >= status["counts"]["checks"].as_u64().expect("a number")).then_some(())
    });
}
