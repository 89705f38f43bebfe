//! A changed `servers.toml` is applied while clients are connected.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of},
};

const SERVERS: usize = 20;

fn tools() -> Value {
    json!({ "tools": [
        { "name": "who", "on": { "counter": true } },
        { "name": "slow", "on": { "delay_ms": 2_000, "text": "finished" } },
        { "name": "gone", "on": { "text": "still here" } },
    ] })
}

fn twenty() -> Client {
    let mut setup = Setup::new();
    for n in 0..SERVERS {
        setup = setup.server(&format!("s{n}"), tools());
    }
    let mut client = setup.start();
    for n in 0..SERVERS {
        client.until_ready(&format!("s{n}"));
    }
    client
}

/// The process that answers a call.
fn pid(client: &mut Client, tool: &str) -> u64 {
    json_of(&client.execute(tool, json!({})))["pid"].as_u64().expect("a process id")
}

fn pids(client: &mut Client) -> BTreeMap<String, u64> {
    let names = (0..SERVERS).map(|n| format!("s{n}"));
    names.map(|name| (name.clone(), pid(client, &format!("{name}.who")))).collect()
}

/// Changes the file like an editor: writes another file, then renames it.
fn edit(client: &Client, change: impl FnOnce(String) -> String) {
    let file = client.folder.path().join("servers.toml");
    let text = change(fs::read_to_string(&file).expect("it is there"));
    let beside = file.with_extension("tmp");
    fs::write(&beside, text).expect("it can be written");
    fs::rename(&beside, &file).expect("it can be renamed");
}

#[test]
fn of_twenty_servers_only_the_one_that_changed_is_started_anew() {
    let mut client = twenty();
    let before = pids(&mut client);
    // A call in flight to the old server ends there.
    let slow = client.begin_call("s7__slow", json!({}));
    edit(&client, |text| {
        text.replace("[servers.s7]\n", "[servers.s7]\nenv = { CHANGED = 'yes' }\n")
            .replace("[servers.s3]\n", "[servers.s3]\nblocked_tools = ['gone']\n")
    });
    let notice = client.until_notice("config_changed");
    assert_eq!((&notice["restarted"], &notice["changed"]), (&json!(["s7"]), &json!(["s3"])), "{notice}");
    client.until_ready("s7");
    let after = pids(&mut client);
    for (name, pid) in &before {
        assert_eq!(after[name] == *pid, name != "s7", "{name}");
    }
    assert_eq!(client.result(slow)["content"][0]["text"], "finished");
    // Filters apply at once.
    assert_eq!(client.fault("s3.gone", json!({}))["code"], "forbidden");
    let found = client.answer("browse_category", json!({ "category": "s3" }));
    assert!(!found.to_string().contains("gone"), "{found}");
    // The old process ends once it has no calls in flight.
    let old = before["s7"];
    eventually("the old server has left", || {
        (!std::path::Path::new(&format!("/proc/{old}")).exists()).then_some(())
    });
}

#[test]
fn a_faulty_file_changes_nothing_and_is_told() {
    let mut client = Setup::new().server("s0", tools()).start();
    client.until_ready("s0");
    let pid = json_of(&client.execute("s0.who", json!({})))["pid"].clone();
    edit(&client, |text| format!("{text}\n[servers.s0\n"));
    let notice = client.until_notice("config_faulty");
    assert!(notice["message"].as_str().is_some_and(|text| text.contains("servers.toml")), "{notice}");
    assert_eq!(json_of(&client.execute("s0.who", json!({})))["pid"], pid);
    // A faulty entry: a new one is left out, an existing one keeps its old version.
    edit(&client, |text| {
        text.replace("\n[servers.s0\n", "\n[servers.bad]\ncomand = 'x'\n")
            .replace("[servers.s0]\n", "[servers.s0]\ntimeuot = '5s'\n")
    });
    let notice = client.until_notice("config_changed");
    for fault in ["comand", "timeuot"] {
        assert!(notice["faults"].to_string().contains(fault), "{notice}");
    }
    assert!(notice.get("stopped").is_none(), "{notice}");
    assert_eq!(json_of(&client.execute("s0.who", json!({})))["pid"], pid);
    // A faulty policy must not be ignored: what it forbids would go through.
    edit(&client, |text| format!("{text}\n[policies.careful]\nrisk = 'hihg'\npolicy = 'deny'\n"));
    client.notices.clear();
    let notice = client.until_notice("config_faulty");
    assert!(notice["message"].as_str().is_some_and(|text| text.contains("policies.careful")), "{notice}");
}

#[test]
fn servers_come_and_go() {
    let mut client = Setup::new().server("first", tools()).server("second", tools()).start();
    client.until_ready("first");
    client.until_ready("second");
    edit(&client, |text| {
        let second = text.split("[servers.second]").nth(1).expect("it is there").to_string();
        text.replace("[servers.second]", "[servers.third]")
            + "# was: "
            + &second.lines().count().to_string()
            + "\n"
    });
    let notice = client.until_notice("config_changed");
    assert_eq!((&notice["started"], &notice["stopped"]), (&json!(["third"]), &json!(["second"])), "{notice}");
    client.until_ready("third");
    assert_eq!(client.fault("second.who", json!({}))["code"], "unknown_tool");
    assert!(json_of(&client.execute("third.who", json!({})))["pid"].is_u64());
}

#[test]
fn a_profile_that_is_gone_lets_nothing_through() {
    let setup = Setup::new().server("s0", tools()).toml("[profiles.reader]\ncategories = ['s0']\n");
    let mut client = setup.run(&["--profile", "reader"]);
    client.initialize("2025-06-18", json!({}));
    eventually("the server answers", || client.fault_code("s0.who").is_none().then_some(()));
    edit(&client, |text| text.replace("[profiles.reader]\ncategories = ['s0']\n", ""));
    eventually("the profile is gone", || {
        (client.fault_code("s0.who") == Some("forbidden".into())).then_some(())
    });
    let found = client.answer("search_tools", json!({ "query": "who" }));
    assert!(!found.to_string().contains("s0."), "{found}");
}

#[test]
fn a_tool_is_renamed_and_gets_its_old_name_back() {
    let mut client = Setup::new().server("s0", tools()).server("s1", tools()).start();
    client.until_ready("s0");
    client.until_ready("s1");
    let of_s0 = pid(&mut client, "s0.who");
    let now = |client: &mut Client, expected: &str| {
        eventually("the name has changed", || {
            (client.answer("get_tool", json!({ "name": "s0.who" }))["name"] == expected).then_some(())
        });
    };
    edit(&client, |text| text + "[servers.s0.tools.who]\nrename = 'me'\n");
    now(&mut client, "s0.me");
    assert_eq!(pid(&mut client, "s0.me"), of_s0, "the server was not restarted");
    pid(&mut client, "s1.who");
    edit(&client, |text| text.replace("rename = 'me'", ""));
    now(&mut client, "s0.who");
    assert_eq!(client.fault_code("s0.me"), Some("unknown_tool".into()));
    assert_eq!(pid(&mut client, "s0.who"), of_s0);
}

#[test]
fn a_rule_that_comes_to_match_nothing_is_told() {
    let rule = "[policies.careful]\ntools = ['s0.slwo']\npolicy = 'approve'\n";
    let told = "policies.careful.tools: `s0.slwo` matches no tool; the nearest is `s0.slow`";
    let mut client = Setup::new().server("s0", tools()).toml(rule).start();
    client.until_ready("s0");
    // At the start, logged once and not again with each list.
    eventually("it is logged", || client.stderr().contains(told).then_some(()));
    client.execute("gateway.status", json!({}));
    assert!(
        client.notices.iter().all(|notice| notice["kind"] != "rules_without_tools"),
        "{:?}",
        client.notices
    );
    // After a reload, sessions are notified of new ones too.
    edit(&client, |text| text + "[profiles.p]\ndeny = ['so.*']\n");
    let notice = client.until_notice("rules_without_tools");
    assert_eq!(
        notice["rules"],
        json!(["profiles.p.deny: `so.*` matches no server; the nearest is `s0.*`"]),
        "{notice}"
    );
    assert_eq!(client.stderr().matches(told).count(), 1);
    // A rule that was fixed and breaks again is reported again.
    edit(&client, |text| text.replace("s0.slwo", "s0.slow"));
    eventually("the rule holds", || {
        (client.fault_code("s0.slow") == Some("needs_approval".into())).then_some(())
    });
    client.notices.clear();
    edit(&client, |text| text.replace("s0.slow", "s0.slwo"));
    let notice = client.until_notice("rules_without_tools");
    assert_eq!(notice["rules"], json!([told]), "{notice}");
}
