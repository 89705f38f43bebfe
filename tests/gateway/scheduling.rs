//! Schedules and reminders: later runs, exactly once, whichever gateway is running then.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use nonet_base::clock::Clock;
use nonet_config as config;
use nonet_state::session::Caller;
use serde_json::{Value, json};

use crate::{
    client::Client,
    inside::{Inside, eventually},
    setup::{self, PATIENCE, Setup, json_of, logged, notices_of, text_of},
};

/// Converts an ISO 8601 time to milliseconds since 1970.
fn ms(time: &Value) -> u64 {
    let time: jiff::Timestamp = time.as_str().expect("a time").parse().expect("ISO 8601 with an offset");
    u64::try_from(time.as_millisecond()).expect("after 1970")
}

/// Advances the clock to shortly after this time.
fn pass(clock: &Clock, until: &Value) {
    clock.advance(Duration::from_millis(ms(until).saturating_sub(clock.unix_ms()) + 10));
}

async fn own(inside: &Inside, tool: &str, params: Value) -> Value {
    json_of(&inside.execute(&format!("gateway.{tool}"), params).await)
}

/// Waits for a notice of this kind.
async fn notice(inside: &Inside, kind: &str) -> Value {
    eventually(&format!("a notice `{kind}`"), async || {
        let notices = notices_of(&inside.call("list_categories", json!({})).await);
        notices.into_iter().find(|notice| notice["kind"] == kind)
    })
    .await
}

fn tracker(setup: Setup) -> (Setup, std::path::PathBuf) {
    let log = setup.path("calls");
    let issues = json!({ "name": "list_issues", "on": { "text": "[\"a bug\"]" }, "annotations": { "readOnlyHint": true } });
    let note = json!({ "name": "write_note" });
    let setup = setup.server("tracker", json!({ "tools": [issues, note], "call_log": log }));
    let app = "[apps.issues_to_note]\ndescription = 'Puts the open issues into a note'\n\
        [[apps.issues_to_note.steps]]\nid = 'issues'\ntool = 'tracker.list_issues'\n\
        [[apps.issues_to_note.steps]]\nid = 'note'\ntool = 'tracker.write_note'\nparams = { text = '{{issues}}' }";
    (setup.toml(app), log)
}

#[tokio::test]
async fn every_weekday_at_9_read_the_open_issues_and_put_them_into_a_note() {
    let (setup, log) = tracker(Setup::new());
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = setup.open_with_clock(&clock, state.path()).await;
    let found = inside.answer("search_tools", json!({ "query": "run every weekday at 9" })).await;
    let hits = found["results"].as_array().expect("hits");
    assert!(hits.iter().any(|hit| hit["name"] == "gateway.schedule"), "{found}");
    let tool = inside.answer("get_tool", json!({ "name": "gateway.schedule" })).await;
    assert_eq!(tool["input_schema"]["required"], json!(["when"]), "{tool}");

    let params = json!({ "when": "0 9 * * 1-5", "app_id": "issues_to_note", "label": "issues", "timezone": "Europe/Berlin" });
    let scheduled = own(&inside, "schedule", params).await;
    assert_eq!(
        (&scheduled["app_id"], &scheduled["timezone"]),
        (&json!("issues_to_note"), &json!("Europe/Berlin"))
    );
    let first = scheduled["next_run"].clone();
    assert!(first.as_str().is_some_and(|at| at.contains("T09:00:00+0")), "{scheduled}");
    let listed = inside.answer("execute_tool", scheduled["next_step"]["arguments"].clone()).await;
    assert_eq!((&listed["total"], &listed["schedules"][0]["next_run"]), (&json!(1), &first), "{listed}");

    pass(&clock, &first);
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!(
        (&told["job_id"], &told["label"], &told["success"]),
        (&scheduled["job_id"], &json!("issues"), &json!(true))
    );
    assert_eq!(told["result"]["output"], json!({ "text": ["a bug"] }), "{told}");
    assert!(told.get("late_ms").is_none() && told.get("again").is_none(), "{told}");
    assert!(ms(&told["next_run"]) > ms(&first), "{told}");
    // The result is kept like a task's.
    let whole = inside.answer("execute_tool", told["next_step"]["arguments"].clone()).await;
    assert_eq!(whole["tool_calls"], 2, "{whole}");
    assert_eq!(logged(&log).len(), 2);

    pass(&clock, &told["next_run"]);
    notice(&inside, "scheduled_run").await;
    let listed = own(&inside, "schedule_list", json!({})).await;
    assert_eq!(
        (&listed["schedules"][0]["runs"], &listed["schedules"][0]["last_run"]["success"]),
        (&json!(2), &json!(true))
    );
    let cancelled = own(&inside, "cancel_schedule", json!({ "job_id": "issues" })).await;
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    assert_eq!(own(&inside, "schedule_list", json!({})).await["total"], 0);
}

#[tokio::test]
async fn a_tool_runs_as_often_as_it_is_to_and_a_failure_is_told() {
    let tools = json!([{ "name": "check", "on": [{ "text": "fine" }, { "error": "out of order" }] }]);
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside =
        Setup::new().server("shop", json!({ "tools": tools })).open_with_clock(&clock, state.path()).await;
    let params = json!({ "cron": "*/5 * * * *", "tool": "shop.check", "max_runs": 2 });
    let scheduled = own(&inside, "schedule", params).await;
    pass(&clock, &scheduled["next_run"]);
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!((&told["tool"], &told["result"]), (&json!("shop.check"), &json!("fine")), "{told}");
    pass(&clock, &told["next_run"]);
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!(
        (&told["success"], &told["error"]["message"]),
        (&json!(false), &json!("out of order")),
        "{told}"
    );
    assert!(told.get("next_run").is_none(), "{told}");
    let result = inside.call("execute_tool", told["next_step"]["arguments"].clone()).await;
    assert_eq!((text_of(&result), &result["isError"]), ("out of order", &json!(true)));
    eventually("it has run as often as it was to", async || {
        (own(&inside, "schedule_list", json!({})).await["total"] == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_reminder_comes_back_and_the_same_label_overwrites() {
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = Setup::new().open_with_clock(&clock, state.path()).await;
    let remind = async |when: &str, message: &str| {
        own(&inside, "remind", json!({ "when": when, "message": message, "label": "deploy" })).await
    };
    let first = remind("in 1d", "deploy on Monday").await;
    let second = remind("in 2h", "deploy on Tuesday").await;
    assert_eq!((&second["job_id"], &second["overwritten"]), (&first["job_id"], &json!(true)), "{second}");
    clock.advance(Duration::from_secs(2 * 3_600));
    let told = notice(&inside, "reminder").await;
    assert_eq!(
        (&told["message"], &told["label"], &told["due"]),
        (&json!("deploy on Tuesday"), &json!("deploy"), &second["next_run"])
    );
    clock.advance(Duration::from_secs(2 * 86_400));
    // The notice arrives before the reminder is gone.
    eventually("it is done", async || {
        (own(&inside, "schedule_list", json!({})).await["total"] == 0).then_some(())
    })
    .await;
    // A recurring reminder, however far the clock jumps.
    remind("0 8 * * *", "stand up").await;
    clock.advance(Duration::from_secs(10 * 86_400));
    let told = notice(&inside, "reminder").await;
    assert!(ms(&told["next_run"]) > clock.unix_ms() && told["late_ms"].is_u64(), "{told}");
    // If the clock is turned back, nothing is repeated.
    clock.turn_back(Duration::from_secs(5 * 86_400));
    let listed = eventually("it is put off", async || {
        let listed = own(&inside, "schedule_list", json!({})).await["schedules"][0].take();
        (listed["runs"] == 1).then_some(listed)
    })
    .await;
    assert_eq!(listed["next_run"], told["next_run"]);
}

#[tokio::test]
async fn a_clock_that_was_a_year_ahead_silences_nothing_for_a_year() {
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = Setup::new().open_with_clock(&clock, state.path()).await;
    let year = Duration::from_secs(365 * 86_400);
    own(&inside, "remind", json!({ "when": "0 8 * * *", "message": "stand up" })).await;
    clock.advance(year);
    notice(&inside, "reminder").await;
    clock.turn_back(year);
    eventually("it is due in the present again", async || {
        let listed = own(&inside, "schedule_list", json!({})).await;
        let in_a_week = clock.unix_ms() + 7 * 86_400_000;
        (ms(&listed["schedules"][0]["next_run"]) < in_a_week).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_run_during_which_the_clock_goes_back_is_made_once() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "slow", "on": { "delay_ms": 1_500, "text": "done" } }]);
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let setup = setup.server("shop", json!({ "tools": tools, "call_log": log }));
    let inside = setup.open_with_clock(&clock, state.path()).await;
    let scheduled = own(&inside, "schedule", json!({ "when": "0 * * * *", "name": "shop.slow" })).await;
    pass(&clock, &scheduled["next_run"]);
    eventually("it runs", async || (!logged(&log).is_empty()).then_some(())).await;
    clock.turn_back(Duration::from_secs(60));
    let told = notice(&inside, "scheduled_run").await;
    assert!(ms(&told["next_run"]) > ms(&scheduled["next_run"]), "{told}");
    pass(&clock, &scheduled["next_run"]);
    let listed = eventually("it is put off", async || {
        let listed = own(&inside, "schedule_list", json!({})).await["schedules"][0].take();
        (listed["runs"] == 1).then_some(listed)
    })
    .await;
    assert_eq!((&listed["next_run"], logged(&log).len()), (&told["next_run"], 1), "{listed}");
}

#[tokio::test]
async fn a_notice_goes_to_its_owner_whatever_its_label() {
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let setup = Setup::new().toml("[profiles.a]\n[profiles.b]");
    let inside = setup.open_with_clock(&clock, state.path()).await;
    let (a, b) = (inside.under("a"), inside.under("b"));
    let remind = async |caller: &Caller, when: &str, message: &str| {
        let params = json!({ "when": when, "message": message, "label": "same" });
        let call = json!({ "name": "gateway.remind", "params": params });
        json_of(&inside.call_as(caller, "execute_tool", call).await)
    };
    let first = remind(&a, "in 5m", "of a").await;
    remind(&b, "in 1h", "of b").await;
    pass(&clock, &first["next_run"]);
    let next =
        async |caller: &Caller| notices_of(&inside.call_as(caller, "list_categories", json!({})).await);
    let told = eventually("a is told", async || next(&a).await.pop()).await;
    assert_eq!(told["message"], "of a");
    assert_eq!(next(&b).await, [Value::Null; 0]);
}

#[tokio::test]
async fn what_is_corrected_still_runs_later() {
    let needs =
        json!({ "type": "object", "required": ["text"], "properties": { "text": { "type": "string" } } });
    let post = json!({ "name": "post", "inputSchema": needs });
    let app = "[apps.note]\ntool = 'shop.post'";
    let inside = Setup::new().server("shop", json!({ "tools": [post] })).toml(app).open().await;
    let later = json!({ "when": "in 1h", "label": "x", "name": "shop.post", "params": { "txxxt": 5 } });
    let fault = own(&inside, "schedule", later).await;
    let corrected = &fault["error"]["details"]["corrected_call"]["arguments"];
    assert_eq!(corrected["name"], "gateway.schedule", "{fault}");
    let params = &corrected["params"];
    assert_eq!(
        (&params["when"], &params["label"], &params["name"]),
        (&json!("in 1h"), &json!("x"), &json!("shop.post"))
    );
    assert!(params["params"]["text"].is_string(), "{fault}");
    let fault = own(&inside, "watch_start", json!({ "name": "shop.post", "interval": 7 })).await;
    let corrected = &fault["error"]["details"]["corrected_call"]["arguments"];
    assert_eq!(
        (&corrected["name"], &corrected["params"]["interval"]),
        (&json!("gateway.watch_start"), &json!(7))
    );
    let fault =
        own(&inside, "schedule", json!({ "when": "in 1h", "app_id": "nott", "input": { "text": "a" } }))
            .await;
    let step = &fault["error"]["next_step"]["arguments"];
    assert_eq!(
        (&step["name"], &step["params"]["app_id"]),
        (&json!("gateway.schedule"), &json!("note")),
        "{fault}"
    );

    // An app by its name, through call_app, or with its input in the params.
    for given in [
        json!({ "name": "note", "params": { "text": "a" } }),
        json!({ "name": "call_app", "params": { "app_id": "note", "input": { "text": "a" } } }),
        json!({ "app_id": "note", "params": { "text": "a" } }),
    ] {
        let mut params = given.clone();
        params["when"] = json!("in 1h");
        let scheduled = own(&inside, "schedule", params).await;
        assert_eq!(scheduled["app_id"], "note", "{given}: {scheduled}");
        assert!(scheduled["repaired"].is_array(), "{scheduled}");
    }
}

#[tokio::test]
async fn what_runs_by_itself_may_use_the_to_do_list_and_launches_nothing() {
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let setup = Setup::new().server("shop", json!({ "tools": [{ "name": "buy" }] }));
    let inside = setup.open_with_clock(&clock, state.path()).await;
    let params = json!({ "when": "in 1h", "name": "gateway.task_create", "params": { "subject": "water" } });
    let scheduled = own(&inside, "schedule", params).await;
    pass(&clock, &scheduled["next_run"]);
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!(told["success"], true, "{told}");
    let launch =
        json!({ "when": "in 1h", "name": "gateway.background_run", "params": { "name": "shop.buy" } });
    assert_eq!(own(&inside, "schedule", launch).await["error"]["code"], "invalid_params");
    // Nonet's own notices cannot be watched.
    let params = json!({ "name": "gateway.read_resource", "params": { "uri": "nonet://gateway/notices" } });
    let refused = inside.execute("gateway.watch_start", params).await;
    assert!(refused["isError"] == true && text_of(&refused).contains("cannot be read"), "{refused}");
}

#[tokio::test]
async fn what_was_missed_is_made_up_for_once_at_the_next_start() {
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = Setup::new().open_with_clock(&clock, state.path()).await;
    own(&inside, "remind", json!({ "when": "in 1h", "message": "tea" })).await;
    own(&inside, "remind", json!({ "when": "0 * * * *", "message": "stretch" })).await;
    inside.gateway.stop().await;
    drop(inside);
    clock.advance(Duration::from_secs(10 * 3_600));
    let inside = Setup::new().open_with_clock(&clock, state.path()).await;
    let mut told = Vec::new();
    eventually("both reminders", async || {
        told.extend(notices_of(&inside.call("list_categories", json!({})).await));
        (told.len() >= 2).then_some(())
    })
    .await;
    told.sort_by_key(|notice| notice["message"].to_string());
    assert_eq!((&told[0]["message"], &told[1]["message"], told.len()), (&json!("stretch"), &json!("tea"), 2));
    assert!(told[1]["late_ms"].as_u64().is_some_and(|late| late >= 9 * 3_600_000), "{told:?}");
    assert!(ms(&told[0]["next_run"]) > clock.unix_ms(), "{told:?}");
}

#[tokio::test]
async fn what_cannot_be_scheduled_is_said_at_once() {
    let tools = json!([{ "name": "fine" }, { "name": "pay" }]);
    let setup = Setup::new()
        .server("shop", json!({ "tools": tools }))
        .toml("[servers.shop.tools.pay]\npolicy = 'approve'\n[apps.buy]\ntool = 'shop.pay'");
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = setup.open_with_clock(&clock, state.path()).await;
    let tool = |when: &str, name: &str| json!({ "when": when, "name": name });
    for (params, code, part) in [
        (tool("in 5m", "shop.pay"), "needs_approval", "nobody can be asked"),
        (json!({ "when": "in 5m", "app_id": "buy" }), "needs_approval", "shop.pay"),
        (json!({ "when": "in 5m", "app_id": "by" }), "not_found", "no app `by`"),
        (tool("in 5m", "shop.nothing"), "unknown_tool", ""),
        (json!({ "when": "in 5m" }), "invalid_params", "either `name`"),
        (json!({ "when": "in 5m", "name": "shop.fine", "app_id": "buy" }), "invalid_params", "either `name`"),
        (tool("2020-01-01T00:00:00Z", "shop.fine"), "invalid_params", "has passed: it is "),
        (tool("when it rains", "shop.fine"), "invalid_params", "`tomorrow at 9`"),
        (tool("tomorrow", "shop.fine"), "invalid_params", "`tomorrow at 9`"),
        (tool("every 45 minutes", "shop.fine"), "invalid_params", "`every 30 minutes`"),
        (tool("0 25 * * *", "shop.fine"), "invalid_params", "is not a cron expression"),
        (tool("* * * *", "shop.fine"), "invalid_params", "five fields"),
        (
            json!({ "when": "in 5m", "name": "shop.fine", "timezone": "Berlin" }),
            "invalid_params",
            "Europe/Berlin",
        ),
    ] {
        let fault = inside.fault("gateway.schedule", params.clone()).await;
        assert_eq!(fault["code"], code, "{params}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|message| message.contains(part)), "{params}: {fault}");
    }
    for message in [String::new(), "x".repeat(2_001)] {
        let fault = inside.fault("gateway.remind", json!({ "when": "in 5m", "message": message })).await;
        assert!(fault["message"].as_str().is_some_and(|message| message.contains("message")), "{fault}");
    }
    let fault = inside.fault("gateway.cancel_schedule", json!({ "job_id": "schedule-0" })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
    for n in 0..100 {
        own(&inside, "remind", json!({ "when": "in 1d", "message": format!("{n}") })).await;
    }
    let fault = inside.fault("gateway.remind", json!({ "when": "in 1d", "message": "one more" })).await;
    assert!(fault["message"].as_str().is_some_and(|message| message.contains("100 schedules")), "{fault}");
}

#[tokio::test]
async fn a_time_may_be_said_in_words() {
    let setup =
        Setup::new().server("shop", json!({ "tools": [{ "name": "check", "on": { "text": "fine" } }] }));
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = setup.open_with_clock(&clock, state.path()).await;
    let scheduled = |when: &str| {
        let params = json!({ "when": when, "name": "shop.check", "label": when, "timezone": "UTC" });
        let inside = &inside;
        async move { own(inside, "schedule", params).await }
    };
    let (minute, hour) = (60_000, 3_600_000);
    let now = clock.unix_ms();
    let first = scheduled("every minute").await;
    let wait = ms(&first["next_run"]) - now;
    assert!(wait <= minute, "{first}");
    let second = scheduled("in two hours").await;
    assert!((2 * hour - 1_000..2 * hour + minute).contains(&(ms(&second["next_run"]) - now)), "{second}");
    let third = scheduled("tomorrow at 9").await;
    let wait = ms(&third["next_run"]) - now;
    assert!(wait > 9 * hour && wait <= 33 * hour, "{third}");
    assert_eq!(ms(&third["next_run"]) % (24 * hour), 9 * hour, "{third}");
    // What repeats does so by the same words.
    pass(&clock, &first["next_run"]);
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!(ms(&told["next_run"]) - ms(&first["next_run"]), minute, "{told}");
}

#[tokio::test]
async fn the_tools_are_found_by_what_people_say() {
    let by_words = tracker(Setup::new()).0.open().await;
    let by_meaning = tracker(Setup::new()).0.by_meaning("").open().await;
    by_meaning.gateway.publisher.indexed(PATIENCE).await;
    for (query, tool) in [
        ("tell me when this file changes", "gateway.watch_start"),
        ("watch a page and notify me about changes", "gateway.watch_start"),
        ("stop watching", "gateway.watch_stop"),
        ("every weekday at 9", "gateway.schedule"),
        ("run this every day", "gateway.schedule"),
        ("what is scheduled", "gateway.schedule_list"),
        ("cancel the schedule", "gateway.cancel_schedule"),
        ("remind me tomorrow", "gateway.remind"),
        ("set a reminder", "gateway.remind"),
    ] {
        for inside in [&by_words, &by_meaning] {
            let found = inside.answer("search_tools", json!({ "query": query })).await;
            let hits = found["results"].as_array().expect("hits");
            assert!(hits.iter().take(3).any(|hit| hit["name"] == tool), "{query}: {found}");
        }
    }
}

/// Returns a gateway over stdio with one tool whose calls are logged.
fn shop(on: Value) -> (Client, std::path::PathBuf) {
    shop_with(json!({ "name": "buy", "on": on }))
}

fn shop_with(tool: Value) -> (Client, std::path::PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let script = json!({ "tools": [tool], "call_log": log });
    let mut client = setup.server("shop", script).start_program();
    client.until_ready("shop");
    (client, log)
}

fn schedule(client: &mut Client, when: &str) -> Value {
    let params = json!({ "when": when, "name": "shop.buy", "label": "shopping" });
    client.answer("execute_tool", json!({ "name": "gateway.schedule", "params": params }))
}

fn killed(client: &Client) {
    let pid = i32::try_from(client.pid()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is there");
}

fn beside(client: &Client) -> Client {
    let mut other = client.beside(&[]);
    other.initialize("2025-06-18", json!({}));
    other.until_ready("shop");
    other
}

fn calls(log: &Path) -> usize {
    logged(log).iter().filter(|line| line.get("cancelled").is_none()).count()
}

#[test]
fn of_two_gateways_one_runs_what_is_due_also_when_the_other_is_killed() {
    let (mut client, log) = shop(json!({ "text": "bought" }));
    let mut other = beside(&client);
    let scheduled = schedule(&mut client, "in 1s");
    assert!(scheduled["note"].as_str().is_some_and(|note| note.contains("shared = true")), "{scheduled}");
    let told = client.until_notice("scheduled_run");
    assert_eq!((&told["job_id"], calls(&log)), (&scheduled["job_id"], 1), "{told}");

    schedule(&mut client, "in 2s");
    killed(&client);
    let told = other.until_notice("scheduled_run");
    assert_eq!((&told["success"], told.get("again"), calls(&log)), (&json!(true), None, 2), "{told}");
}

#[test]
fn a_run_that_was_killed_is_made_again_if_the_tool_is_idempotent() {
    let on = json!({ "delay_ms": 2_000, "text": "bought" });
    let (mut client, log) =
        shop_with(json!({ "name": "buy", "on": on, "annotations": { "idempotentHint": true } }));
    let mut other = beside(&client);
    schedule(&mut client, "in 1s");
    setup::eventually("the run has begun", || (calls(&log) == 1).then_some(()));
    killed(&client);
    let told = other.until_notice("scheduled_run");
    assert_eq!((&told["again"], &told["success"], calls(&log)), (&json!(true), &json!(true), 2), "{told}");
}

#[test]
fn a_run_that_was_killed_is_unknown_if_a_second_one_could_do_harm() {
    let (mut client, log) = shop(json!({ "delay_ms": 2_000, "text": "bought" }));
    let mut other = beside(&client);
    schedule(&mut client, "in 1s");
    setup::eventually("the run has begun", || (calls(&log) == 1).then_some(()));
    killed(&client);
    let told = other.until_notice("scheduled_run");
    assert_eq!((&told["outcome"], told.get("success")), (&json!("unknown"), None), "{told}");
    assert_eq!((&told["tool"], &told["params"]), (&json!("shop.buy"), &json!({})), "{told}");
    assert!(told["message"].as_str().is_some_and(|text| text.contains("Check what it has done")), "{told}");
    // The next step shows the tools that can check it.
    let step = &told["next_step"];
    let tools = other.answer(step["tool"].as_str().expect("a tool"), step["arguments"].clone());
    assert_eq!(tools["tools"][0]["name"], "shop.buy", "{tools}");
    assert_eq!(calls(&log), 1, "it was not made again");
}

/// A gateway killed between the end of a run and its report: the run is not repeated.
#[test]
fn a_run_that_had_ended_is_told_and_not_made_again() {
    let (mut client, log) = shop(json!({ "delay_ms": 2_500, "text": "bought" }));
    let launched = client.answer("execute_tool", json!({ "name": "shop.buy", "background": true }));
    let wait = json!({ "task_id": launched["task_id"], "wait": true });
    assert_eq!(text_of(&client.execute("gateway.background_run", wait)), "bought");
    schedule(&mut client, "in 1d");
    killed(&client);
    // The record as written before a run begins.
    let file = client.folder.path().join(".local/state/nonet/records.db");
    let records = rusqlite::Connection::open(file).expect("it is there");
    let begun = json!({ "task_id": launched["task_id"], "late_ms": 0 }).to_string();
    let update =
        "UPDATE records SET due_ms = 1, body = json_set(body, '$.begun', json(?1)) WHERE kind = 'schedule'";
    assert_eq!(records.execute(update, [begun]).expect("written"), 1);
    drop(records);

    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    let told = client.until_notice("scheduled_run");
    assert_eq!((&told["result"], &told["task_id"]), (&json!("bought"), &launched["task_id"]), "{told}");
    assert_eq!((told.get("again"), calls(&log)), (None, 1), "{told}");
}

#[cfg(unix)]
#[test]
fn a_shared_gateway_stays_for_what_is_left_to_run() {
    let setup = Setup::new().gateway("shared = true\nshared_grace = '100ms'");
    let log = setup.path("calls");
    let mut client =
        setup.server("shop", json!({ "tools": [{ "name": "buy" }], "call_log": log })).start_program();
    client.until_ready("shop");
    let scheduled = schedule(&mut client, "in 3s");
    assert!(scheduled.get("note").is_none(), "{scheduled}");
    client.leave();
    client.ended();
    setup::eventually("it runs without a client", || (calls(&log) == 1).then_some(()));
    // The next client is notified.
    let mut client = client.beside(&[]);
    client.initialize("2025-06-18", json!({}));
    assert_eq!(client.until_notice("scheduled_run")["job_id"], scheduled["job_id"]);
}

/// After an update, the old version's gateway hands its remaining work to a new one.
#[test]
fn a_shared_gateway_of_another_version_is_replaced() {
    let setup = Setup::new().gateway("shared = true\nshared_grace = '100ms'");
    let mut client = setup.server("shop", json!({ "tools": [{ "name": "buy" }] })).start_program();
    client.until_ready("shop");
    let scheduled = schedule(&mut client, "in 1d");
    let folder = client.folder.path().join(".local/state/nonet/shared");
    let files = |end: &str| {
        let entries = fs::read_dir(&folder).expect("readable").flatten().map(|entry| entry.path());
        entries.filter(|path| path.to_string_lossy().ends_with(end)).collect::<Vec<_>>()
    };
    let starts = || {
        let logs = files(".log").into_iter().map(|log| fs::read_to_string(log).expect("readable"));
        logs.map(|log| log.matches("the shared gateway is ready").count()).sum::<usize>()
    };
    let mut newer = UnixStream::connect(&files(".sock")[0]).expect("it listens");
    newer.write_all(b"{\"version\":\"99.0.0\"}\n").expect("written");
    newer.read_exact(&mut [0]).expect("it answers");
    client.leave();
    client.ended();
    assert_eq!(starts(), 1);
    drop(newer);
    setup::eventually("another gateway is ready", || (starts() == 2).then_some(()));
    let mut client = client.beside(&[]);
    client.initialize("2025-06-18", json!({}));
    let cancelled =
        json_of(&client.execute("gateway.cancel_schedule", json!({ "job_id": scheduled["job_id"] })));
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    client.leave();
    client.ended();
    setup::eventually("nothing is left to run, so it ends", || files(".sock").is_empty().then_some(()));
}

#[tokio::test]
async fn a_gateway_of_another_configuration_leaves_alone_what_it_has_no_tools_for() {
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let shop = |setup: Setup| {
        let script = json!({ "tools": [{ "name": "buy", "on": { "text": "bought" } }] });
        setup.server("shop", script)
    };
    let inside = shop(Setup::new()).open_with_clock(&clock, state.path()).await;
    own(&inside, "schedule", json!({ "when": "in 1h", "name": "shop.buy" })).await;
    own(&inside, "remind", json!({ "when": "in 2h", "message": "tea" })).await;
    inside.gateway.stop().await;
    let Inside { folder, gateway, caller } = inside;
    drop((gateway, caller));
    clock.advance(Duration::from_secs(3 * 3_600));

    let other = Setup::new().open_with_clock(&clock, state.path()).await;
    assert_eq!(notice(&other, "reminder").await["message"], "tea");
    // The reminder is reported before it is removed from the list.
    let listed = eventually("one is left", async || {
        let listed = own(&other, "schedule_list", json!({})).await;
        (listed["total"] == 1).then_some(listed)
    });
    let listed = listed.await;
    assert_eq!(listed["schedules"][0]["tool"], "shop.buy", "{listed}");
    let mut setup = Setup::new();
    setup.folder = folder;
    let inside = shop(setup).open_with_clock(&clock, state.path()).await;
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!(told["result"], "bought", "{told}");
}

#[tokio::test]
async fn a_scheduled_app_that_asks_the_user_waits_for_the_answer() {
    let app = "[apps.publish]\noutput = '{{ok.answer}}'\nsteps = [{ id = 'ok', ask = { question = 'Publish it?' } }]";
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = Setup::new().toml(app).open_with_clock(&clock, state.path()).await;
    own(&inside, "schedule", json!({ "when": "in 1h", "app_id": "publish" })).await;
    clock.advance(Duration::from_secs(3_600));
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!(told["result"]["status"], "needs_user", "{told}");
    let answer = json!({ "token": told["result"]["token"], "answer": "yes, at noon" });
    let ended = inside.answer("ask_user", answer).await;
    assert_eq!(ended["output"], "yes, at noon", "{ended}");
}

#[tokio::test]
async fn schedules_and_watches_can_be_switched_off() {
    let shop = |keys: &str| {
        let script = json!({ "tools": [{ "name": "check", "on": { "text": "fine" } }] });
        Setup::new().gateway(keys).server("shop", script)
    };
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = shop("").open_with_clock(&clock, state.path()).await;
    let scheduled = own(&inside, "schedule", json!({ "when": "every minute", "name": "shop.check" })).await;
    own(&inside, "watch_start", json!({ "name": "shop.check" })).await;

    let reload = async |keys: &str| {
        let setup = shop(keys);
        let text = setup.text(|_, _| "command = 'true'".into());
        let loaded =
            config::parse(&text, &setup.path("servers.toml"), config::ValueSources::NONE).expect("usable");
        inside.gateway.reload(loaded.config).await;
        inside.gateway.publisher.published().await;
    };
    reload("scheduler = false\nwatchers = false").await;
    for (tool, key) in
        [("schedule", "scheduler = false"), ("remind", "scheduler"), ("watch_start", "watchers")]
    {
        let fault = inside.fault(&format!("gateway.{tool}"), json!({ "when": "in 1m", "name": "a" })).await;
        assert_eq!(fault["code"], "forbidden", "{fault}");
        assert!(fault["message"].as_str().is_some_and(|text| text.contains(key)), "{fault}");
    }
    let listed = inside.answer("browse_category", json!({ "category": "gateway", "page_size": 100 })).await;
    let listed = listed.to_string();
    assert!(!listed.contains("gateway.schedule") && !listed.contains("gateway.watch"), "{listed}");
    assert!(!inside.gateway.errands.has_errands().await, "nothing is due while both are off");
    pass(&clock, &scheduled["next_run"]);

    reload("watchers = false").await;
    let told = notice(&inside, "scheduled_run").await;
    assert_eq!(told["job_id"], scheduled["job_id"], "{told}");
    own(&inside, "cancel_schedule", json!({ "job_id": scheduled["job_id"] })).await;
    assert!(!inside.gateway.errands.has_errands().await, "a watch that does not run keeps no gateway");
}
