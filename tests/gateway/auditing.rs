//! The audit log: one line per call, however it ends; a chain that survives kills; and queries.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Output,
    sync::Mutex,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually, json_of},
    web::WebClient,
};

/// Adds `[audit]` with further keys, in the test's folder.
fn audited(setup: Setup, keys: &str) -> Setup {
    setup.toml(&format!("[audit]\nfolder = 'audit'\n{keys}\n"))
}

fn nonet(folder: &Path, arguments: &[&str]) -> Output {
    command(folder).args(arguments).output().expect("it runs")
}

/// Returns the report of `nonet audit verify --json` on the only chain.
fn verified(folder: &Path) -> Value {
    let output = nonet(folder, &["audit", "verify", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(output.status.success(), report["whole"] == true, "{report}");
    assert_eq!(report["chains"].as_array().map(Vec::len), Some(1), "{report}");
    report
}

/// Returns every line of the log, in order.
fn lines(folder: &Path) -> Vec<Value> {
    let mut files: Vec<_> = fs::read_dir(folder.join("audit"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    let text: String = files.iter().map(|file| fs::read_to_string(file).expect("readable")).collect();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Counts the lines of calls, by tool and outcome.
fn counts(lines: &[Value]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for line in lines.iter().filter(|line| line["event"] == "call") {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        *counts.entry((text("tool"), text("outcome"))).or_default() += 1;
    }
    counts
}

/// Returns a server whose tools fail in every way.
fn shop() -> Value {
    let needs_n =
        json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    json!({ "tools": [
        { "name": "say" },
        { "name": "count", "input_schema": needs_n },
        { "name": "fail", "on": { "error": "sold out" } },
        { "name": "refuse", "on": { "rpc_error": { "code": -32000, "message": "no" } } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "crash", "on": { "crash": true } },
        { "name": "pay" },
        { "name": "ruin" },
    ] })
}

fn leave(client: &mut Client) {
    client.leave();
    assert_eq!(client.ended().code(), Some(0));
}

#[test]
fn every_call_has_one_line_however_it_ends() {
    let rules = "[servers.shop.tools.pay]\npolicy = 'approve'\n[servers.shop.tools.ruin]\npolicy = 'deny'\n\
                 [apps.both]\n[[apps.both.steps]]\nid = 'one'\ntool = 'shop.say'\nparams = { n = '{{input.n}}' }\n\
                 [[apps.both.steps]]\nid = 'two'\ntool = 'shop.fail'\nafter = ['one']\n";
    let setup = Setup::new().server("shop", shop()).toml(rules);
    let mut client = audited(setup, "").start_program_with(json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow" } }));
    client.until_ready("shop");
    client.call("shop__say", json!({ "n": 1 }));
    client.execute("shop.say", json!({ "n": 1 }));
    client.execute("shop.fail", json!({}));
    client.execute("shop.refuse", json!({}));
    client.execute("shop.crash", json!({}));
    client.until_ready("shop");
    client.execute("shop.count", json!({ "n": "three" }));
    client.execute("shop.pay", json!({}));
    client.execute("shop.ruin", json!({}));
    client.execute("shop.nothing", json!({}));
    client.call("execute_tool", json!({ "name": "shop.hang", "timeout_ms": 50 }));
    let actions =
        json!([{ "name": "shop.say", "params": {} }, { "name": "shop.fail" }, { "name": "shop.gone" }]);
    client.call("run_parallel", json!({ "actions": actions }));
    client.call("call_app", json!({ "app_id": "both", "input": { "n": 5 } }));
    // One call is cancelled by the client, and one ends with the client.
    let cancelled = client.begin_call("shop__hang", json!({ "n": 2 }));
    eventually("it is at the server", || (client.server("shop")["calls_running"] == 1).then_some(()));
    let params = json!({ "requestId": cancelled });
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
    eventually("it is cancelled", || client.server("shop").get("calls_running").is_none().then_some(()));
    client.begin_call("shop__hang", json!({ "n": 3 }));
    eventually("it is at the server", || (client.server("shop")["calls_running"] == 1).then_some(()));
    leave(&mut client);

    let folder = client.folder.path();
    let all = lines(folder);
    let mut found = counts(&all);
    assert!(found.remove(&("gateway.status".into(), "ok".into())).is_some());
    let ended = found.keys().find(|(tool, outcome)| tool == "shop.hang" && outcome != "timeout").cloned();
    let shown: Vec<String> =
        found.iter().map(|((tool, outcome), count)| format!("{tool} {outcome} {count}")).collect();
    let at_the_end = ["cancelled", "server_down"]
        .iter()
        .filter_map(|outcome| found.get(&("shop.hang".into(), (*outcome).to_owned())));
    assert_eq!(at_the_end.sum::<usize>(), 2, "{ended:?} {shown:?}");
    let shown: Vec<String> = shown
        .into_iter()
        .filter(|line| !line.starts_with("shop.hang cancelled") && !line.starts_with("shop.hang server_down"))
        .collect();
    assert_eq!(
        shown,
        [
            "apps.both upstream_error 1",
            "shop.count invalid_params 1",
            "shop.crash server_down 1",
            "shop.fail tool_error 3",
            "shop.gone unknown_tool 1",
            "shop.hang timeout 1",
            "shop.nothing unknown_tool 1",
            "shop.pay ok 1",
            "shop.refuse upstream_error 1",
            "shop.ruin forbidden 1",
            "shop.say ok 4",
        ]
    );

    let line = |tool: &str| all.iter().find(|line| line["tool"] == tool).expect("a line");
    let said = line("shop.say");
    assert_eq!(
        (&said["client"], &said["session"], &said["verdict"]),
        (&json!("test"), &json!(1), &json!("allow"))
    );
    assert_eq!(said["version"].as_str().map(str::len), Some(12), "{said}");
    assert!(said["params"]["hash"].is_string() && said["params"].get("text").is_none(), "{said}");
    assert!(
        said["elapsed_us"].as_u64() >= said["server_us"].as_u64() && said["bytes_out"].is_u64(),
        "{said}"
    );
    let paid = line("shop.pay");
    assert_eq!((&paid["verdict"], &paid["approver"]), (&json!("approve"), &json!("form")), "{paid}");
    assert_eq!(paid["rule"], "servers.shop.tools.pay.policy");
    let ruin = line("shop.ruin");
    assert_eq!((&ruin["verdict"], &ruin["rule"]), (&json!("deny"), &json!("servers.shop.tools.ruin.policy")));
    let step = all.iter().find(|line| line["within"] == json!(["both"])).expect("a step");
    let direct = |n: &Value| all.iter().filter(|line| line["params"]["hash"] == *n).count();
    // A step is hashed as sent, with its template replaced by the input, like the input of its app.
    assert_eq!(direct(&step["params"]["hash"]), 2, "{step}");
    assert_eq!(direct(&said["params"]["hash"]), 2, "{said}");

    let report = verified(folder);
    assert_eq!(report["chains"][0]["lines"], json!(all.len()), "{report}");
    assert_eq!((&all[0]["event"], &all[all.len() - 1]["event"]), (&json!("start"), &json!("stop")));
    assert_eq!(all[0]["about"]["config_sha256"].as_str().map(str::len), Some(64));
}

/// Returns the outcome of a call, as reported to its client.
fn outcome(result: &Value) -> String {
    if result["isError"] != true {
        return "ok".into();
    }
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    let error: Value = serde_json::from_str(text).unwrap_or_default();
    error["error"]["code"].as_str().unwrap_or("tool_error").into()
}

#[test]
fn ten_thousand_calls_of_several_clients_under_faults_have_a_line_each() {
    const CLIENTS: usize = 4;
    const CALLS: usize = 2_500;
    let setup = Setup::new().server("shop", shop()).server("good", json!({ "tools": [{ "name": "fine" }] }));
    let site = audited(setup, "").serve_program();
    WebClient::new(&site.address, "/mcp").until_ready("shop");
    WebClient::new(&site.address, "/mcp").until_ready("good");
    let told: Mutex<BTreeMap<(String, String), usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (site, told) = (&site, &told);
            scope.spawn(move || {
                let mut web = WebClient::new(&site.address, "/mcp");
                for n in 0..CALLS {
                    let (tool, params, timeout) = match n + client * 31 {
                        n if n % 400 == 0 => ("shop.crash", json!({}), None),
                        n if n % 40 == 1 => ("shop.hang", json!({}), Some(20)),
                        n if n % 17 == 2 => ("shop.fail", json!({}), None),
                        n if n % 19 == 3 => ("shop.refuse", json!({}), None),
                        n if n % 23 == 4 => ("shop.count", json!({ "n": "three" }), None),
                        n if n % 29 == 5 => ("shop.nothing", json!({}), None),
                        n if n % 2 == 0 => ("good.fine", json!({ "n": n }), None),
                        n => ("shop.say", json!({ "n": n }), None),
                    };
                    let mut arguments = json!({ "name": tool, "params": params });
                    if let Some(timeout) = timeout {
                        arguments["timeout_ms"] = json!(timeout);
                    }
                    let result = web.call("execute_tool", arguments);
                    *told.lock().unwrap().entry((tool.into(), outcome(&result))).or_default() += 1;
                }
            });
        }
    });
    let told = told.into_inner().unwrap();
    assert_eq!(told.values().sum::<usize>(), CLIENTS * CALLS);
    let folder = site.folder.path();
    let stop = |pid: u32, signal| {
        kill(Pid::from_raw(i32::try_from(pid).expect("an id")), signal).expect("it runs");
    };
    stop(site.pid(), Signal::SIGTERM);
    eventually("the log has ended", || {
        let all = lines(folder);
        (all.last()?["event"] == "stop").then_some(())
    });
    let mut found = counts(&lines(folder));
    found.retain(|(tool, _), _| tool != "gateway.status");
    assert_eq!(found, told);
    // Every kind of fault occurred.
    for (tool, outcome) in
        [("shop.crash", "server_down"), ("shop.hang", "timeout"), ("shop.fail", "tool_error")]
    {
        assert!(told.contains_key(&(tool.into(), outcome.into())), "{told:?}");
    }
    verified(folder);
}

#[test]
fn after_a_kill_in_the_middle_each_answered_call_has_its_line_and_the_chain_is_whole() {
    const KILLS: usize = 4;
    let setup = Setup::new().server("shop", shop()).toml("[quotas]\ncalls = 1000\n");
    let mut client = audited(setup, "sync = 'always'\nparams = true").start_program();
    let mut answered = BTreeSet::new();
    let mut n = 0;
    for round in 0..KILLS {
        client.until_ready("shop");
        let mut sent = Vec::new();
        for _ in 0..400 {
            n += 1;
            sent.push((n, client.begin_call("shop__say", json!({ "n": n }))));
        }
        // At a moment when some calls are answered and others are not.
        let (_, last) = sent[50 + 80 * round];
        client.finish(last);
        client.child().kill().expect("it runs");
        client.ended();
        answered.extend(sent.into_iter().filter(|(_, id)| client.has_answer(*id)).map(|(n, _)| n));
        answered.insert(n - 400 + 51 + 80 * round);
        let report = verified(client.folder.path());
        assert_eq!(report["whole"], true, "{report}");
        client = Client::over(client.folder.clone(), &[], &[]);
        client.initialize("2025-06-18", json!({}));
    }
    leave(&mut client);
    let folder = client.folder.path();
    let report = verified(folder);
    assert_eq!(report["whole"], true, "{report}");
    let mut with_line = BTreeSet::new();
    for line in lines(folder).iter().filter(|line| line["tool"] == "shop.say") {
        let params: Value =
            serde_json::from_str(line["params"]["text"].as_str().expect("params")).expect("JSON");
        let n = params["n"].as_u64().expect("a number") as usize;
        assert!(with_line.insert(n), "{n} has two lines");
    }
    let missing: Vec<_> = answered.difference(&with_line).collect();
    assert!(missing.is_empty() && answered.len() > 100 * KILLS, "{missing:?} of {}", answered.len());
    let starts = lines(folder).iter().filter(|line| line["event"] == "start").count();
    assert_eq!(starts, KILLS + 1);
}

#[test]
fn a_line_that_is_changed_is_named() {
    let setup = Setup::new().server("shop", shop());
    let mut client = audited(setup, "").start_program();
    client.until_ready("shop");
    for _ in 0..3 {
        client.execute("shop.say", json!({}));
    }
    leave(&mut client);
    let folder = client.folder.path();
    let whole = nonet(folder, &["audit", "verify"]);
    let text = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert!(whole.status.success() && text.contains("is intact: "), "{text}");
    let hash = text.split("last hash ").nth(1).expect("a hash").trim();
    assert!(nonet(folder, &["audit", "verify", "--expect", hash]).status.success());

    let file = folder.join("audit/audit-1-000000000001.jsonl");
    let before = fs::read_to_string(&file).expect("readable");
    let at = before.lines().position(|line| line.contains("shop.say")).expect("a call") + 1;
    fs::write(&file, before.replacen("shop.say", "shop.pay", 1)).expect("written");
    let broken = nonet(folder, &["audit", "verify"]);
    let told = String::from_utf8_lossy(&broken.stdout).into_owned();
    assert_eq!(broken.status.code(), Some(1));
    assert!(told.contains(&format!("audit-1-000000000001.jsonl:{at}: it was edited")), "{told}");

    // Without its last lines the log is intact, but shorter than expected.
    let kept: Vec<&str> = before.lines().take(at).collect();
    fs::write(&file, kept.join("\n") + "\n").expect("written");
    assert!(nonet(folder, &["audit", "verify"]).status.success());
    let cut = nonet(folder, &["audit", "verify", "--expect", hash]);
    assert_eq!(cut.status.code(), Some(1));
}

#[test]
fn the_log_is_asked_for_tools_clients_and_outcomes() {
    let setup = Setup::new().server("shop", shop());
    let mut client = audited(setup, "").start_program();
    client.until_ready("shop");
    client.execute("shop.say", json!({}));
    client.execute("shop.fail", json!({}));
    client.execute("shop.fail", json!({}));
    leave(&mut client);
    let folder = client.folder.path();
    let found = |arguments: &[&str]| -> Vec<Value> {
        let output = nonet(folder, &[&["audit", "query", "--json"], arguments].concat());
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    assert_eq!(found(&["--tool", "shop.*"]).len(), 3);
    assert_eq!(found(&["--tool", "shop.fail", "-n", "1"]).len(), 1);
    assert_eq!(found(&["--outcome", "tool_error"]).len(), 2);
    assert_eq!(found(&["--client", "TEST", "--tool", "shop.say"]).len(), 1);
    assert_eq!(found(&["--who", "nobody"]).len(), 0);
    assert_eq!(found(&["--tool", "shop.*", "--since", "1h"]).len(), 3);
    assert_eq!(found(&["--until", "1h"]).len(), 0);
    let table = nonet(folder, &["audit", "query", "--tool", "shop.fail"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.starts_with("TIME") || table.trim_start().starts_with("TIME"), "{table}");
    assert!(table.contains("shop.fail") && table.contains("tool_error") && table.contains("test"), "{table}");
    assert_eq!(nonet(folder, &["audit", "query", "--who", "nobody"]).status.code(), Some(1));
    assert_eq!(nonet(folder, &["audit", "query", "--since", "yesterday"]).status.code(), Some(2));
}

#[test]
fn calls_are_refused_while_the_log_cannot_be_written() {
    let setup = Setup::new().server("shop", json!({ "tools": [{ "name": "say" }], "call_log": "calls" }));
    let blocked = setup.path("audit");
    fs::write(&blocked, "a file in the way").expect("written");
    let mut client = audited(setup, "on_failure = 'refuse'").start_program();
    eventually("the log has failed", || {
        client.stderr().contains("the audit log cannot be written").then_some(())
    });
    let fault = eventually("a call is refused", || {
        let result = client.execute("shop.say", json!({}));
        let fault = json_of(&result)["error"].take();
        (fault["code"] == "internal").then_some(fault)
    });
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("on_failure")), "{fault}");
    assert_eq!(fault["retryable"], true, "{fault}");
    let check = nonet(client.folder.path(), &["check", "--json"]);
    let report: Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert_eq!(check.status.code(), Some(1), "{report}");
    assert!(report["warnings"].to_string().contains("the audit log cannot be written"), "{report}");
    fs::remove_file(&blocked).expect("removed");
    eventually("calls go on", || (client.execute("shop.say", json!({}))["isError"] != true).then_some(()));
    leave(&mut client);
    let folder = client.folder.path();
    verified(folder);
    assert!(
        counts(&lines(folder)).contains_key(&("shop.say".into(), "internal".into())),
        "refusals have lines too"
    );
}

#[test]
fn no_call_waits_for_a_disk_that_is_full() {
    for (keys, answer) in
        [("sync = 'always'", "called"), ("sync = 'always'\non_failure = 'refuse'", "internal")]
    {
        let setup = Setup::new().server("shop", json!({ "tools": [{ "name": "say" }] }));
        fs::write(setup.path("audit"), "a file in the way").expect("written");
        let mut client = audited(setup, keys).start();
        // The first call meets the failure, the others come after it.
        for n in 0..3 {
            let result = client.execute("shop.say", json!({ "n": n }));
            match answer {
                "called" => assert_ne!(result["isError"], true, "{result}"),
                code => assert_eq!(json_of(&result)["error"]["code"], code, "{result}"),
            }
            let status = json_of(&client.execute("gateway.status", json!({})));
            assert_eq!(status["audit"]["state"], "failing", "{status}");
        }
    }
}

#[test]
fn a_log_that_is_gone_or_no_file_is_told_by_verify() {
    let setup = Setup::new().server("shop", shop());
    let mut client = audited(setup, "key = '${AUDIT_KEY:-a key of sixteen}'").start_program();
    client.execute("shop.say", json!({}));
    leave(&mut client);
    let folder = client.folder.path();
    verified(folder);
    let verify = || nonet(folder, &["audit", "verify"]);
    let file = fs::read_dir(folder.join("audit"))
        .expect("readable")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .expect("a file");
    fs::remove_file(&file).expect("removed");
    #[cfg(target_os = "linux")]
    {
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("made");
        let told = verify();
        assert_eq!(told.status.code(), Some(1));
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("it is not a file"), "{told}");
        fs::remove_file(&file).expect("removed");
    }
    let told = verify();
    assert_eq!(told.status.code(), Some(1));
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("there is no audit log") && told.contains("[audit] is on"), "{told}");
    fs::remove_dir_all(folder.join("audit")).expect("removed");
    assert_eq!(verify().status.code(), Some(1));
}

#[test]
fn a_token_is_named_by_its_place_and_a_reload_is_in_the_chain() {
    let token = "reader-0123456789abcdef";
    let setup = Setup::new()
        .server("shop", shop())
        .toml(&format!("[profiles.reader]\ncategories = ['shop']\ntokens = ['{token}']\n"));
    let site = audited(setup, "").serve_program();
    let mut web = WebClient::with_token(&site.address, "/mcp", token);
    eventually("it is ready", || (outcome(&web.call("shop__say", json!({}))) == "ok").then_some(()));
    let folder = site.folder.path();
    let file = folder.join("servers.toml");
    let text = fs::read_to_string(&file).expect("readable");
    fs::write(&file, text + "[servers.more]\ncommand = '/nonexistent'\n").expect("written");
    let all = eventually("the reload is told", || {
        let all = lines(folder);
        all.iter().any(|line| line["event"] == "reload").then_some(all)
    });
    let said = all.iter().find(|line| line["outcome"] == "ok").expect("a call");
    assert_eq!(
        (&said["profile"], &said["token"]),
        (&json!("reader"), &json!("profiles.reader.tokens[0]")),
        "{said}"
    );
    let reload = all.iter().find(|line| line["event"] == "reload").expect("a reload");
    assert_eq!(reload["about"]["started"], json!(["more"]), "{reload}");
    assert_ne!(reload["about"]["config_sha256"], all[0]["about"]["config_sha256"]);
}
