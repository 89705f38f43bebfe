//! The limits of particular clients, which are recognised by the names they report.

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of, notices_of},
};

fn shop(gateway: &str) -> Setup {
    let tools = json!([{ "name": "text", "on": { "size": 60_000 } }, { "name": "wait", "on": { "delay_ms": 1_500 } }]);
    Setup::new().server("shop", json!({ "tools": tools })).toml(gateway)
}

/// Performs the handshake under this name.
fn named(setup: Setup, name: &str, capabilities: Value) -> Client {
    let mut client = setup.start_program_silently();
    let info = json!({ "name": name, "version": "1.2.3" });
    client.request(
        "initialize",
        json!({ "protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": info }),
    );
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    client.until_ready("shop");
    client
}

#[test]
fn a_known_client_is_given_no_more_than_it_reads() {
    let size =
        |name: &str| named(shop(""), name, json!({})).execute("shop.text", json!({})).to_string().len();
    assert!(size("claude-code") < 20_000);
    assert!(size("nobody knows") > 60_000);
}

#[test]
fn the_file_says_more_of_a_client_than_the_table() {
    let toml = "[clients.mine]\nmatch = ['my-*']\nsoft_deadline = '600ms'\nmax_result_bytes = 5000\nelicitation = false\n";
    let mut client = named(shop(toml), "My-Agent", json!({ "elicitation": {} }));
    assert!(client.execute("shop.text", json!({})).to_string().len() < 6_000);
    let handle = client.answer("execute_tool", json!({ "name": "shop.wait" }));
    assert_eq!(handle["state"], "running", "{handle}");
    // This client is known to show no forms, whatever it claims.
    let asked = client.answer("ask_user", json!({ "question": "Well?" }));
    assert_eq!(asked["status"], "needs_user", "{asked}");
    assert!(client.asked.is_empty());
}

#[test]
fn every_call_leaves_one_line_with_who_what_how_much_and_how_long() {
    let toml = "[servers.shop.env]\nSECRET = 'hunter2hunter2'\n";
    let mut client = named(shop(toml), "somebody", json!({}));
    client.execute("shop.text", json!({ "password": "hunter2hunter2" }));
    client.fault("shop.nothing", json!({ "password": "hunter2hunter2" }));
    // The log has its own thread, which may lag behind.
    let (log, made, refused) = eventually("both lines are there", || {
        let log = client.stderr();
        let lines = log.lines().filter(|line| line.contains("nonet::call") && line.contains("shop."));
        let lines: Vec<String> = lines.map(String::from).collect();
        assert!(lines.len() <= 2, "{lines:#?}");
        let [made, refused] = <[String; 2]>::try_from(lines).ok()?;
        Some((log, made, refused))
    });
    for part in [
        "client=somebody",
        "tool=shop.text",
        "server=shop",
        "bytes_in=29",
        "bytes_out=60",
        "gateway_us=",
        "server_us=",
        "outcome=\"ok\"",
    ] {
        assert!(made.contains(part), "{part}: {made}");
    }
    for part in ["client=somebody", "tool=shop.nothing", "outcome=\"unknown_tool\""] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(!log.contains("hunter2"), "{log}");
    let status = json_of(&client.execute("gateway.status", json!({})));
    assert!(status["outcomes"]["ok"].as_u64().is_some_and(|count| count > 0), "{status}");
    assert_eq!(status["outcomes"]["unknown_tool"], 1, "{status}");
    assert!(status["mean_us"]["server"].is_u64(), "{status}");
    assert_eq!(notices_of(&status), Vec::<Value>::new());
}
