//! A changed `servers.toml` is applied while clients are connected.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually, json_of, text_of},
    web::{WebClient, http},
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
    let mut client = setup.start_program();
    for n in 0..SERVERS {
        client.until_ready(&format!("s{n}"));
    }
    client
}

/// Returns the process that answers a call.
fn pid(client: &mut Client, tool: &str) -> u64 {
    json_of(&client.execute(tool, json!({})))["pid"].as_u64().expect("a process id")
}

fn pids(client: &mut Client) -> BTreeMap<String, u64> {
    let names = (0..SERVERS).map(|n| format!("s{n}"));
    names.map(|name| (name.clone(), pid(client, &format!("{name}.who")))).collect()
}

/// Changes the file as an editor does: writes another file, then renames it.
fn edit(client: &Client, change: impl FnOnce(String) -> String) {
    let file = client.folder.path().join("servers.toml");
    let text = change(fs::read_to_string(&file).expect("it is there"));
    let beside = file.with_extension("tmp");
    fs::write(&beside, text).expect("it can be written");
    fs::rename(&beside, &file).expect("it can be renamed");
}

/// Runs `nonet reload`. Returns its exit code and output.
fn reload(client: &Client, more: &[&str]) -> (Option<i32>, String) {
    let output = command(client.folder.path()).arg("reload").args(more).output().expect("nonet runs");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn accept(client: &Client) {
    let (code, told) = reload(client, &["--accept"]);
    assert_eq!(code, Some(0), "{told}");
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
    let mut client = Setup::new().server("s0", tools()).start_program();
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
    let mut client = Setup::new().server("first", tools()).server("second", tools()).start_program();
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
    accept(&client);
    eventually("the profile is gone", || {
        (client.fault_code("s0.who") == Some("unknown_tool".into())).then_some(())
    });
    let found = client.answer("search_tools", json!({ "query": "who" }));
    assert!(!found.to_string().contains("s0."), "{found}");
}

#[test]
fn a_tool_is_renamed_and_gets_its_old_name_back() {
    let mut client = Setup::new().server("s0", tools()).server("s1", tools()).start_program();
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
    let mut client = Setup::new().server("s0", tools()).toml(rule).start_program();
    client.until_ready("s0");
    // At the start, logged once, and not again with each list.
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

const TOKEN: &str = "owners-token-0123456789-0123456789";

/// Returns protective rules and four servers.
fn guarded() -> Setup {
    let mut setup = Setup::new().gateway(&format!("tokens = ['{TOKEN}']"));
    for n in 0..4 {
        setup = setup.server(&format!("s{n}"), tools());
    }
    setup.toml("[policies.no]\ntools = ['s0.gone']\npolicy = 'deny'\n[profiles.reader]\nmax_risk = 'low'\n")
}

#[test]
fn a_file_that_loses_what_protects_is_refused_until_it_is_accepted() {
    let mut client = guarded().start_program();
    for n in 0..4 {
        client.until_ready(&format!("s{n}"));
    }
    let file = client.folder.path().join("servers.toml");
    let whole = fs::read_to_string(&file).expect("it is there");
    let pid_before = pid(&mut client, "s1.who");
    let stays = |client: &mut Client, text: &str, lost: &str| {
        client.notices.clear();
        edit(client, |_| text.to_string());
        let notice = client.until_notice("config_refused");
        assert!(notice["lost"].to_string().contains(lost), "{notice}");
        assert!(notice["hint"].as_str().is_some_and(|hint| hint.contains("reload --accept")), "{notice}");
        assert_eq!(pid(client, "s1.who"), pid_before);
        assert_eq!(client.fault("s0.gone", json!({}))["code"], "forbidden");
        let status = json_of(&client.execute("gateway.status", json!({})));
        assert!(status["config_refused"].to_string().contains(lost), "{status}");
    };
    // Emptied, cut off at the start of each table, and with a table removed.
    stays(&mut client, "", "4 of 4 servers");
    let cuts = ["[servers.s1]", "[policies.no]", "[profiles.reader]"];
    for cut in cuts {
        let at = whole.find(cut).expect("it is there");
        stays(&mut client, &whole[..at], "profiles.reader");
    }
    let without_tokens = whole.replace(&format!("tokens = ['{TOKEN}']"), "");
    stays(&mut client, &without_tokens, "tokens");
    // The same file again causes no notice, and `nonet reload` gives the reason.
    let (code, told) = reload(&client, &[]);
    assert!(code == Some(1) && told.contains("all tokens") && told.contains("reload --accept"), "{told}");
    let status = command(client.folder.path()).arg("status").output().expect("nonet runs");
    assert!(String::from_utf8_lossy(&status.stdout).contains("is refused"), "{status:?}");
    // The restored text is in use, and always was.
    edit(&client, |_| whole.clone());
    eventually("the refusal is over", || {
        let status = json_of(&client.execute("gateway.status", json!({})));
        status.get("config_refused").is_none().then_some(())
    });
    let (code, told) = reload(&client, &[]);
    assert!(code == Some(0) && told.contains("nothing changed"), "{told}");
    // The user confirms the change.
    let at = whole.find("[policies.no]").expect("it is there");
    stays(&mut client, &whole[..at], "policies.no");
    client.notices.clear();
    let (code, told) = reload(&client, &["--accept"]);
    assert_eq!(code, Some(0), "{told}");
    eventually("the policy is gone", || {
        (text_of(&client.execute("s0.gone", json!({}))) == "still here").then_some(())
    });
    assert_eq!(pid(&mut client, "s1.who"), pid_before);
    // The confirmation was for that text: another one needs its own.
    edit(&client, |_| String::new());
    client.until_notice("config_refused");
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    let status = json_of(&client.execute("gateway.status", json!({})));
    assert_eq!(status["servers"], json!([]), "a restart takes what is there");
}

#[test]
fn nonet_reload_asks_every_gateway_of_the_file() {
    let mut first = Setup::new().server("s0", tools()).server("s1", tools()).start_program();
    first.until_ready("s0");
    let (code, told) = reload(&first, &["--json"]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((code, told["gateways"].as_array().map(Vec::len)), (Some(0), Some(1)), "{told}");
    let mut second = first.beside(&[]);
    second.initialize("2025-06-18", json!({}));
    second.until_ready("s0");
    eventually("both can be asked", || {
        let told: Value = serde_json::from_str(&reload(&first, &["--json"]).1).expect("JSON");
        (told["gateways"].as_array().map(Vec::len) == Some(2)).then_some(())
    });
    edit(&first, |text| text.replace("[servers.s1]\n", "[servers.s1]\ntags = ['x']\n"));
    let (code, told) = reload(&first, &[]);
    assert_eq!((code, told.lines().count()), (Some(0), 2), "{told}");
    // A fault is reported, and an ended gateway is not waited for.
    second.leave();
    second.ended();
    edit(&first, |text| text + "[servers.s2\n");
    let (code, told) = reload(&first, &[]);
    assert!(code == Some(1) && told.lines().next().is_some_and(|line| line.contains("Process")), "{told}");
    first.leave();
    first.ended();
    let (code, told) = reload(&first, &[]);
    assert!(code == Some(1) && told.contains("No gateway is running"), "{told}");
}

#[test]
fn a_command_of_the_user_may_remove_the_only_server() {
    let mut client = Setup::new().server("s0", tools()).start_program();
    client.until_ready("s0");
    let run = |arguments: &[&str]| {
        let output = command(client.folder.path()).args(arguments).output().expect("nonet runs");
        assert!(output.status.success(), "{output:?}");
    };
    run(&["disable", "s0"]);
    eventually("the server is gone", || {
        let status = json_of(&client.execute("gateway.status", json!({})));
        (status["servers"] == json!([])).then_some(())
    });
    assert!(client.notices.iter().all(|notice| notice["kind"] != "config_refused"), "{:?}", client.notices);
}

#[test]
fn no_door_is_open_beyond_this_machine_without_tokens() {
    let serve = |setup: &Setup| {
        setup.write();
        let mut command = command(setup.folder.path());
        command.args(["serve", "--http", "0.0.0.0:0"]);
        command
    };
    let setup = Setup::new();
    let output = serve(&setup).output().expect("nonet runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("allow_without_tokens"), "{told}");
    // With tokens, the gateway serves; without them, it serves nobody, even if the user accepts such a file.
    let site = guarded().serve_at("0.0.0.0:0");
    let address = site.address.replace("0.0.0.0", "127.0.0.1");
    let client = WebClient::with_token(&address, "/mcp", TOKEN);
    let file = site.folder.path().join("servers.toml");
    let text = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, text.replace(&format!("tokens = ['{TOKEN}']"), "")).expect("written");
    let reload = |more: &[&str]| {
        let output = command(site.folder.path()).arg("reload").args(more).output().expect("nonet runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(reload(&[]).contains("all tokens"));
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let knock = || http(&address, "POST", "/mcp", &[], &ping).status;
    assert_eq!(knock(), 401);
    reload(&["--accept"]);
    assert_eq!(knock(), 401);
    drop(client);
    // If the user says so, the gateway is open.
    let site = Setup::new().gateway("allow_without_tokens = true").serve_at("0.0.0.0:0");
    WebClient::new(&site.address.replace("0.0.0.0", "127.0.0.1"), "/mcp");
}
