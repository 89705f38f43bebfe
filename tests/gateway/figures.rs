//! Figures from a tool's calls: counts, times, the last error, and the ranking among equal tools.

use nonet_state::session::Caller;
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    inside::{Inside, eventually},
    setup::{self, Setup, json_of, text_of},
};

fn shop() -> Setup {
    let tools = json!({ "tools": [
        { "name": "buy", "description": "Buys a thing", "on": [
            { "text": "bought" },
            { "error": "\n---\nthe till is jammed, password=hunter2hunter2\nTraceback" },
            { "rpc_error": { "code": -32000, "message": "closed on Sundays" } },
            { "text": "bought" },
        ] },
        { "name": "weigh", "inputSchema": { "type": "object", "required": ["grams"], "properties": { "grams": { "type": "integer" } } } },
        { "name": "wait", "on": { "hang": true } },
        { "name": "paint", "on": [{ "error": "out of paint" }, { "rug_pull": true }] },
    ] });
    Setup::new().server("shop", tools)
}

async fn told(inside: &Inside, caller: &Caller, name: &str) -> Value {
    json_of(&inside.call_as(caller, "get_tool", json!({ "name": name })).await)
}

#[tokio::test]
async fn a_tool_that_was_called_says_how_its_calls_went() {
    let inside = shop().open().await;
    let fields = ["calls", "failures", "mean_ms", "p95_ms", "cost", "last_error"];
    let known = async |name: &str| {
        let told = told(&inside, &inside.caller, name).await;
        fields.map(|field| told[field].clone())
    };
    assert_eq!(known("shop.buy").await, [const { Value::Null }; 6]);
    inside.execute("shop.buy", json!({})).await;
    let [calls, failures, mean, p95, cost, error] = known("shop.buy").await;
    assert_eq!((calls, failures, cost, error), (json!(1), json!(0), Value::Null, Value::Null));
    assert!(mean.is_u64() && mean == p95, "{mean} {p95}");

    inside.execute("shop.buy", json!({})).await;
    let [calls, failures, _, _, cost, error] = known("shop.buy").await;
    assert_eq!((calls, failures, cost), (json!(2), json!(1), Value::Null));
    assert_eq!(error["code"], "tool_error", "{error}");
    assert_eq!(error["message"], "the till is jammed, password=***", "{error}");
    assert!(error["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{error}");

    inside.execute("shop.buy", json!({})).await;
    let [calls, failures, _, _, cost, error] = known("shop.buy").await;
    assert_eq!((calls, failures, cost), (json!(3), json!(2), json!("high")));
    assert_eq!(error["code"], "upstream_error", "{error}");
    assert!(error["message"].as_str().is_some_and(|text| text.ends_with("closed on Sundays")), "{error}");
}

#[tokio::test]
async fn what_never_ran_and_what_was_cancelled_says_nothing_of_a_tool() {
    let inside = shop().open().await;
    inside.fault("execute_tool", json!({ "name": "shop.weigh", "params": {} })).await;
    let caller = inside.caller.clone();
    let call = inside.call_as(&caller, "execute_tool", json!({ "name": "shop.wait" }));
    let cancel = async {
        eventually("the call is in flight", async || {
            (inside.gateway.servers.connections()["shop"].in_flight() == 1).then_some(())
        })
        .await;
        caller.cancel.cancel();
    };
    tokio::join!(async { drop(tokio::time::timeout(setup::PATIENCE, call).await) }, cancel);
    let fresh = Caller { cancel: Default::default(), ..inside.caller.clone() };
    for name in ["shop.weigh", "shop.wait", "gateway.status"] {
        let told = told(&inside, &fresh, name).await;
        assert_eq!((&told["calls"], &told["failures"]), (&Value::Null, &Value::Null), "{told}");
    }
}

#[tokio::test]
async fn the_last_error_is_the_own_profiles_and_of_the_own_definition() {
    let inside = shop().toml("[profiles.reader]\n[profiles.writer]").open().await;
    let (reader, writer) = (inside.under("reader"), inside.under("writer"));
    let paint = json!({ "name": "shop.paint" });
    inside.call_as(&reader, "execute_tool", paint.clone()).await;
    let own = told(&inside, &reader, "shop.paint").await;
    assert_eq!(own["last_error"]["message"], "out of paint", "{own}");
    for other in [&writer, &inside.caller] {
        let told = told(&inside, other, "shop.paint").await;
        assert_eq!((&told["failures"], &told["last_error"]), (&json!(1), &Value::Null), "{told}");
    }
    // The second call changes the definition.
    inside.call_as(&reader, "execute_tool", paint).await;
    let after = eventually("the tool has another version", async || {
        let after = told(&inside, &reader, "shop.paint").await;
        (after["version"] != own["version"]).then_some(after)
    })
    .await;
    assert_eq!((&after["calls"], &after["last_error"]), (&json!(2), &Value::Null), "{after}");
}

fn known(client: &mut Client, name: &str) -> Value {
    client.answer("get_tool", json!({ "name": name }))
}

#[test]
fn figures_outlive_the_gateway_and_a_new_name_until_they_are_forgotten() {
    let mut client = shop().start_program();
    client.until_ready("shop");
    client.execute("shop.buy", json!({}));
    client.execute("shop.buy", json!({}));
    let before = known(&mut client, "shop.buy");

    let file = client.folder.path().join("servers.toml");
    let text = std::fs::read_to_string(&file).expect("readable");
    std::fs::write(&file, text + "\n[servers.shop.tools.buy]\nrename = 'purchase'\n").expect("writable");
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    let after = known(&mut client, "shop.purchase");
    for field in ["calls", "failures", "mean_ms", "p95_ms", "last_error"] {
        assert_eq!(after[field], before[field], "{field}: {after}");
    }
    assert_eq!((&after["calls"], &after["failures"]), (&json!(2), &json!(1)), "{after}");
    client.execute("shop.purchase", json!({}));
    assert_eq!(known(&mut client, "shop.purchase")["calls"], 3);
    client.leave();
    client.ended();

    let output =
        command(client.folder.path()).args(["forget", "learned", "--yes"]).output().expect("nonet runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(said.contains("the figures of 1 tool\n"), "{said}");
    let mut client = Client::over(client.folder.clone(), &[], &[]);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    assert_eq!(known(&mut client, "shop.purchase")["calls"], Value::Null);
}

#[test]
fn where_nothing_is_learned_figures_end_with_the_gateway() {
    let mut client = shop().gateway("learn = false").start_program();
    client.until_ready("shop");
    client.execute("shop.buy", json!({}));
    assert_eq!(known(&mut client, "shop.buy")["calls"], 1);
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    assert_eq!(known(&mut client, "shop.buy")["calls"], Value::Null);
}

/// Returns two servers with the same tool; the first one's fails three times.
fn twins() -> Setup {
    let files = |on: Value| json!({ "tools": [{ "name": "read_file", "description": "Reads a file from the disk", "on": on }] });
    let fails = json!({ "error": "the disk is broken" });
    Setup::new()
        .server("home", files(json!([fails, fails, fails, { "text": "from home" }])))
        .server("work", files(json!({ "text": "from work" })))
}

const QUERY: &str = "read a file from the disk";

#[tokio::test]
async fn of_twins_the_one_whose_calls_cost_less_comes_first() {
    for (learn, expected) in
        [(true, ["work.read_file", "home.read_file"]), (false, ["home.read_file", "work.read_file"])]
    {
        let inside = twins().gateway(&format!("learn = {learn}")).open().await;
        // A shared session would prefer the tool called after its search.
        let session = || Caller { session: inside.gateway.sessions.open(None), ..inside.caller.clone() };
        let search = async |query: &str| {
            json_of(&inside.call_as(&session(), "search_tools", json!({ "query": query })).await)
        };
        assert_eq!(search(QUERY).await["results"][0]["name"], "home.read_file", "nothing is known yet");
        for _ in 0..3 {
            inside.execute("home.read_file", json!({})).await;
            assert_eq!(text_of(&inside.execute("work.read_file", json!({})).await), "from work");
        }
        let found = search(QUERY).await;
        assert_eq!(found["results"][0]["name"], expected[0], "{found}");
        assert_eq!(found["results"][0]["also"], json!([expected[1]]), "{found}");
        let named = search("home read file").await;
        assert_eq!(named["results"][0]["name"], "home.read_file", "it was asked for: {named}");
    }
}

#[tokio::test]
async fn what_was_called_after_a_search_beats_what_costs_less() {
    let inside = twins().open().await;
    inside.gateway.observing.recalled().await;
    let session = || Caller { session: inside.gateway.sessions.open(None), ..inside.caller.clone() };
    let search = async |caller: &Caller| {
        json_of(&inside.call_as(caller, "search_tools", json!({ "query": QUERY })).await)
    };
    for _ in 0..3 {
        inside.execute("home.read_file", json!({})).await;
    }
    let caller = session();
    assert_eq!(search(&caller).await["results"][0]["name"], "work.read_file");
    let again = inside.call_as(&caller, "execute_tool", json!({ "name": "home.read_file" })).await;
    assert_eq!(text_of(&again), "from home");
    assert_eq!(search(&session()).await["results"][0]["name"], "home.read_file");
}

#[test]
fn a_tie_is_explained() {
    let mut client = twins().start_program();
    client.until_ready("home");
    client.until_ready("work");
    for _ in 0..3 {
        client.execute("home.read_file", json!({}));
    }
    client.leave();
    client.ended();
    let explained = |more: &[&str]| {
        let search = ["search", QUERY, "--explain"];
        let output = command(client.folder.path()).args(search).args(more).output().expect("nonet runs");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let found: Value = serde_json::from_str(&explained(&["--json"])).expect("JSON");
    assert_eq!(found["results"][0]["name"], "work.read_file", "{found}");
    assert_eq!(found["results"][0]["explain"]["tie"], "cost", "{found}");
    assert!(explained(&[]).contains("tie: its calls cost less"));
}

#[test]
fn of_twins_the_one_whose_server_is_up_comes_first() {
    let setup = Setup::new();
    let open = setup.path("open");
    std::fs::write(&open, "").expect("writable");
    let read = json!({ "name": "read_file", "description": "Reads a file from the disk" });
    let home =
        json!({ "exit_unless_file": open, "tools": [read, { "name": "leave", "on": { "crash": true } }] });
    let mut client = setup.server("home", home).server("work", json!({ "tools": [read] })).start();
    client.until_ready("home");
    client.until_ready("work");
    let first =
        |client: &mut Client| client.answer("search_tools", json!({ "query": QUERY }))["results"][0].take();
    assert_eq!(first(&mut client)["name"], "home.read_file");
    std::fs::remove_file(&open).expect("removed");
    client.execute("home.leave", json!({}));
    let told = setup::eventually("the hit is another server's", || {
        Some(first(&mut client)).filter(|hit| hit["name"] == "work.read_file")
    });
    assert_eq!(told["also"], json!(["home.read_file"]), "{told}");
    let crashed = known(&mut client, "home.leave");
    assert_eq!((&crashed["calls"], &crashed["failures"]), (&json!(1), &json!(1)), "{crashed}");
    assert_eq!(crashed["last_error"]["code"], "server_down", "{crashed}");
}
