//! The page's view of work: clients' open work and stored data, for the user with the token.

use std::fs;

use serde_json::{Value, json};

use crate::{
    setup::{Setup, eventually, json_of},
    web::{Reply, Site, WebClient, http},
};

/// A gateway, a client of it, and the token of the page.
struct Desk {
    site: Site,
    client: WebClient,
    token: String,
}

impl Desk {
    fn new(toml: &str) -> Self {
        let tools = json!([
            { "name": "now", "annotations": { "readOnlyHint": true }, "on": { "text": "same" } },
            { "name": "hang", "on": { "hang": true } },
            { "name": "much", "on": { "text": "x".repeat(100_000) } },
            { "name": "pay" },
            { "name": "fail", "on": { "error": "the till is shut, token=ghp_0123456789abcdefghijklmnopqrstuvwxyz" } },
        ]);
        let setup = Setup::new().server("shop", json!({ "tools": tools })).gateway("max_result_bytes = 2000");
        let site = setup.toml("[audit]\nfolder = 'audit'").toml(toml).serve_program();
        let token = site.page_token();
        let mut client = WebClient::new(&site.address, "/mcp");
        client.until_ready("shop");
        Self { site, client, token }
    }

    fn own(&mut self, tool: &str, params: Value) -> Value {
        let answer =
            self.client.call("execute_tool", json!({ "name": format!("gateway.{tool}"), "params": params }));
        assert_ne!(answer["isError"], true, "{tool}: {answer}");
        json_of(&answer)
    }

    fn send(&self, method: &str, path: &str) -> Reply {
        http(&self.site.address, method, &format!("/ui/api/{path}"), &[("X-Nonet-Token", &self.token)], "")
    }

    fn get(&self, path: &str) -> Value {
        let reply = self.send("GET", path);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        serde_json::from_str(&reply.body).expect("JSON")
    }

    /// Deletes an item, which succeeds once; afterwards the item is gone.
    fn delete(&self, what: &str) {
        let path = format!("work/{what}/delete");
        let reply = self.send("POST", &path);
        assert_eq!(reply.status, 204, "{path}: {reply:?}");
        let again = self.send("POST", &path);
        assert_eq!(again.status, 404, "{path}: {again:?}");
    }

    fn count(&self, list: &str) -> usize {
        self.get("work")[list].as_array().map_or(0, Vec::len)
    }
}

#[test]
fn what_clients_left_is_seen_opened_and_ended() {
    let mut desk = Desk::new("[profiles.reader]");
    let task = desk.own("background_run", json!({ "name": "shop.hang" }));
    let task = task["task_id"].as_str().expect("a task").to_string();
    let watch = desk.own("watch_start", json!({ "name": "shop.now", "interval": 600, "label": "the time" }));
    let watch = watch["watcher_id"].as_str().expect("a watch").to_string();
    let reminder = desk.own("remind", json!({ "when": "in 2h", "message": "Water the plants" }));
    let reminder = reminder["job_id"].as_str().expect("a reminder").to_string();
    let fact = desk.own("remember", json!({ "content": "The plants like rain water", "tags": ["garden"] }));
    let fact = fact["id"].as_str().expect("a fact").to_string();
    desk.client.call("execute_tool", json!({ "name": "shop.much" }));

    let work = desk.get("work");
    assert_eq!((&work["tasks"][0]["task_id"], &work["tasks"][0]["state"]), (&json!(task), &json!("running")));
    assert_eq!(
        (&work["watches"][0]["label"], &work["watches"][0]["state"]),
        (&json!("the time"), &json!("active"))
    );
    assert_eq!(work["schedules"][0]["message"], "Water the plants");
    assert!(work["results"][0]["bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{work}");
    let kept = work["results"][0]["id"].as_str().expect("a reference").to_string();
    for (query, found) in [("", 1), ("plants", 1), ("garden%20rain", 1)] {
        let facts = desk.get(&format!("facts?q={query}"));
        assert_eq!(facts["facts"].as_array().map(Vec::len), Some(found), "{query}: {facts}");
    }

    // The full text of one fact, up to a limit.
    assert_eq!(desk.get(&format!("work/fact/{fact}"))["content"], "The plants like rain water");
    assert_eq!(desk.get(&format!("work/watch/{watch}"))["last_value"], "same");
    assert_eq!(desk.get(&format!("work/schedule/{reminder}"))["job_id"], reminder);
    let shown = desk.get(&format!("work/result/{kept}")).to_string();
    assert!(shown.contains("xxxx") && shown.len() < 30_000, "{} bytes", shown.len());
    // All of it, piece by piece.
    let (mut whole, mut offset, mut total) = (0, json!(0), 0);
    while offset.is_u64() {
        let piece = desk.get(&format!("work/result/{kept}?offset={offset}"))["result"].take();
        total = piece["total"].as_u64().expect("a size") as usize;
        whole += piece["text"].as_str().expect("text").len();
        offset = piece["next_step"]["arguments"]["params"]["offset"].clone();
    }
    assert!(total >= 100_000 && whole == total, "{whole} of {total}");

    // Reading changes nothing, and unavailable actions are refused.
    assert_eq!(desk.send("GET", &format!("work/task/{task}/cancel")).status, 405);
    assert_eq!(desk.send("POST", &format!("work/fact/{fact}/cancel")).status, 400);
    assert_eq!(desk.send("POST", &format!("work/task/{task}/delete")).status, 404, "it runs");
    assert_eq!(desk.send("POST", &format!("work/fact/{fact}/delete?owner=reader")).status, 404);
    assert_eq!(desk.send("GET", "work/fact/none").status, 404);
    assert!((400..500).contains(&desk.send("GET", "work/nonsense/x").status));
    let stranger = http(&desk.site.address, "POST", &format!("/ui/api/work/fact/{fact}/delete"), &[], "");
    assert_eq!(stranger.status, 401);
    assert_eq!(desk.get("facts")["total"], 1);

    assert_eq!(desk.send("POST", &format!("work/task/{task}/cancel")).status, 204);
    eventually("it is cancelled", || (desk.get("work")["tasks"][0]["state"] == "cancelled").then_some(()));
    desk.delete(&format!("task/{task}"));
    for (action, state) in [("pause", "paused"), ("resume", "active")] {
        assert_eq!(desk.send("POST", &format!("work/watch/{watch}/{action}")).status, 204);
        assert_eq!(desk.get("work")["watches"][0]["state"], state);
    }
    for what in [
        format!("watch/{watch}"),
        format!("schedule/{reminder}"),
        format!("fact/{fact}"),
        format!("result/{kept}"),
    ] {
        desk.delete(&what);
    }
    for list in ["tasks", "watches", "schedules", "results", "workflows"] {
        assert_eq!(desk.count(list), 0, "{list}");
    }
    assert_eq!(desk.get("facts")["total"], 0);

    // Each action has a line in the audit log.
    let log = eventually("the lines are written", || {
        let files = fs::read_dir(desk.site.folder.path().join("audit")).ok()?.flatten();
        let text: String = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
        (text.matches("\"event\":\"page\"").count() == 8).then_some(text)
    });
    assert!(log.contains("\"kind\":\"fact\"") && log.contains("\"action\":\"resume\""), "{log}");
}

#[test]
fn a_workflow_that_waits_is_seen_and_given_up() {
    let mut desk = Desk::new(
        "[apps.order]\nsteps = [{ id = 'sure', ask = { question = 'Order it?' } }, { id = 'pay', tool = 'shop.pay', after = ['sure'] }]",
    );
    let asked = desk.client.answer("call_app", json!({ "app_id": "order", "input": { "n": 3 } }));
    assert_eq!(asked["app_id"], "order", "{asked}");
    let work = desk.get("work");
    let flow = &work["workflows"][0];
    assert_eq!((&flow["app_id"], &flow["question"]), (&json!("order"), &json!("Order it?")), "{work}");
    let id = flow["id"].as_str().expect("an id");
    assert_eq!(desk.get(&format!("work/workflow/{id}"))["input"], json!({ "n": 3 }));
    desk.delete(&format!("workflow/{id}"));
    assert_eq!(desk.count("workflows"), 0);
}

#[test]
fn the_figures_agree_and_what_waits_for_the_user_has_not_failed() {
    let mut desk = Desk::new("[servers.shop.tools.pay]\npolicy = 'approve'");
    for (name, params) in [("shop.now", json!({})), ("shop.pay", json!({})), ("shop.fail", json!({}))] {
        desk.client.call("execute_tool", json!({ "name": name, "params": params }));
    }
    desk.client.call("execute_tool", json!({ "name": "shop.nothing" }));
    let state = desk.get("state");
    let outcomes = state["outcomes"].as_object().expect("outcomes");
    let sum: u64 = outcomes.values().filter_map(Value::as_u64).sum();
    assert_eq!(state["calls"].as_u64(), Some(sum), "{state}");
    assert_eq!(outcomes["needs_approval"], 1, "{outcomes:?}");
    // `unknown_tool` and `tool_error`.
    assert_eq!(state["failures"], 2, "{state}");
    assert_eq!(state["servers"][0]["failures"], 1, "{state}");
    // Calls show who made them and why they failed, without secrets.
    let calls = crate::web::first_events(&desk.site.address, "/ui/api/calls", &desk.token, "shop.nothing");
    let failed = calls.iter().find(|call| call["tool"] == "shop.fail").expect("the call");
    let fault = failed["fault"].as_str().expect("its words");
    assert!(fault.contains("the till is shut") && !fault.contains("ghp_0123"), "{fault}");
    assert!(failed.get("profile").is_none() && failed.get("params").is_none(), "{failed}");
}
