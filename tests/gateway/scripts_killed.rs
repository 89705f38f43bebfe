//! What is not repeated when a gateway, or the worker of a script, is killed: at many moments.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of, logged},
};

/// Reads and writes, one after another and at once. What fails leaves its code.
const SCRIPT: &str = "const out = [];
const tried = async (call) => { try { return await call } catch (e) { return e.code } };
for (let n = 0; n < 4; n++) {
  await tried(tools.shop.say({ n }));
  out.push(await tried(tools.shop.write({ n })));
  await sleep(15);
}
out.push(...(await all([4, 5, 6, 7], async (n) => { await tried(tools.shop.say({ n })); return await tried(tools.shop.write({ n })) })));
await sleep(1_000);
return out.map((one) => one.n ?? one)";

fn shop() -> (Setup, std::path::PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "say", "annotations": { "readOnlyHint": true } }, { "name": "write" }]);
    (setup.server("shop", json!({ "tools": tools, "call_log": log })), log)
}

fn kill_at_once(pid: u32) {
    kill(Pid::from_raw(i32::try_from(pid).expect("a process id")), Signal::SIGKILL).expect("it is there");
}

/// Returns how often each tool was called with each number.
fn counts(log: &Path) -> BTreeMap<(String, u64), usize> {
    let mut counts = BTreeMap::new();
    for call in logged(log) {
        // The server hears of cancelled calls as well.
        let Some(name) = call["params"]["name"].as_str().map(String::from) else { continue };
        let n = call["params"]["arguments"]["n"].as_u64().expect("a number");
        *counts.entry((name, n)).or_insert(0) += 1;
    }
    counts
}

#[test]
fn whenever_the_gateway_is_killed_nothing_that_had_ended_runs_twice() {
    // So many calls have begun when it is killed, and so many milliseconds later.
    for (begun, later) in
        [(1, 0), (2, 1), (2, 4), (3, 0), (4, 9), (5, 2), (7, 0), (8, 15), (9, 1), (11, 3), (13, 0), (15, 2)]
    {
        let (setup, log) = shop();
        let mut client = setup.start_program();
        client.until_ready("shop");
        let run = json!({ "name": "gateway.run_script", "params": { "script": SCRIPT } });
        client.begin_call("execute_tool", run.clone());
        eventually("it has begun", || (logged(&log).len() >= begun).then_some(()));
        std::thread::sleep(Duration::from_millis(later));
        kill_at_once(client.pid());
        let mut client = client.restart();
        client.initialize("2025-06-18", json!({}));
        client.until_ready("shop");
        let told = client.answer("execute_tool", run);
        let output = told["output"].as_array().unwrap_or_else(|| panic!("{begun} {later}: {told}"));
        let counts = counts(&log);
        for (n, one) in (0..).zip(output) {
            let count = counts.get(&("write".into(), n)).copied().unwrap_or_default();
            // A write in flight is not made again: whether it has happened is not known.
            let is_known = *one == json!(n) && count == 1 || *one == "cancelled" && count <= 1;
            assert!(is_known, "{begun} {later}: write {n} was made {count} times: {told}");
            let reads = counts.get(&("say".into(), n)).copied().unwrap_or_default();
            assert!((1..=2).contains(&reads), "{begun} {later}: {counts:?}");
        }
        assert_eq!(output.len(), 8, "{told}");
        let again = counts.iter().filter(|((name, _), count)| name == "say" && **count > 1).count();
        assert!(again <= 4, "only reads in flight are made again: {counts:?}");
    }
}

/// Returns the process in which a script of a gateway runs.
fn worker_of(gateway: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let is_child = read("stat").rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
            == Some(gateway);
        is_child && read("cmdline").contains("__script")
    })
}

/// Runs a script in a gateway that ends in this way once so many calls have begun, and again in the next one.
/// Returns the last answer, and how often each call was made.
fn twice(
    setup: Setup,
    log: &Path,
    script: &str,
    begun: usize,
    end: impl FnOnce(&mut Client),
) -> (Value, BTreeMap<(String, u64), usize>) {
    let mut client = setup.start_program();
    client.until_ready("shop");
    let run = json!({ "name": "gateway.run_script", "params": { "script": script } });
    client.begin_call("execute_tool", run.clone());
    eventually("it has begun", || (logged(log).len() >= begun).then_some(()));
    end(&mut client);
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    let told = client.answer("execute_tool", run);
    (told, counts(log))
}

/// A tool that writes, and one that reads and hangs in the first gateway.
fn hanging(log: &Path, slow: Value) -> Value {
    let reads = json!({ "readOnlyHint": true });
    json!({ "tools": [{ "name": "write" }, { "name": "slow", "on": slow, "annotations": reads }], "call_log": log })
}

/// Lets the next gateway's tool answer.
fn answer_at_last(client: &Client, log: &Path) {
    let file = client.folder.path().join("shop.script.json");
    fs::write(file, hanging(log, json!({ "text": "later" })).to_string()).expect("written");
}

#[test]
fn a_script_whose_client_has_left_goes_on() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let setup = setup.server("shop", hanging(&log, json!({ "hang": true })));
    let script =
        "const one = (await tools.shop.write({ n: 1 })).n; return [one, await tools.shop.slow({ n: 2 })]";
    let (told, counts) = twice(setup, &log, script, 2, |client| {
        answer_at_last(client, &log);
        client.leave();
        client.ended();
    });
    assert_eq!((&told["output"], &told["earlier_calls"]), (&json!([1, "later"]), &json!(1)), "{told}");
    assert_eq!(counts[&("write".to_string(), 1)], 1, "{counts:?}");
}

#[test]
fn answers_are_kept_however_busy_the_script_is() {
    let (setup, log) = shop();
    let script = "const one = (await tools.shop.write({ n: 1 })).n; for (let k = 0; k < 1_200; k++) await sleep(5); return one";
    let (told, counts) = twice(setup, &log, script, 1, |client| {
        std::thread::sleep(Duration::from_millis(700));
        kill_at_once(client.pid());
    });
    assert_eq!(told["output"], json!(1), "it is known to have ended: {told}");
    assert_eq!(counts, BTreeMap::from([(("write".into(), 1), 1)]));
}

#[test]
fn the_steps_of_a_workflow_in_a_script_are_not_repeated() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let steps = "[apps.two]\n[[apps.two.steps]]\nid = 'a'\ntool = 'shop.write'\nparams = { n = 1 }\n\
                 [[apps.two.steps]]\nid = 'b'\ntool = 'shop.slow'\nparams = { n = 2 }\nafter = ['a']\n";
    let setup = setup.server("shop", hanging(&log, json!({ "hang": true }))).toml(steps);
    let (told, counts) = twice(setup, &log, "return await call('apps.two')", 2, |client| {
        answer_at_last(client, &log);
        kill_at_once(client.pid());
    });
    assert!(told["error"].is_null() && told["output"].to_string().contains("later"), "{told}");
    assert_eq!(counts[&("write".to_string(), 1)], 1, "{counts:?}");
}

#[test]
fn a_script_that_replaces_functions_sends_nothing_of_its_own() {
    let (setup, log) = shop();
    let mut client = setup.start_program();
    client.until_ready("shop");
    let script = "const forged = Array.from({ length: 600 }, (_, n) => JSON.stringify({ request: { op: 'call', name: 'shop.write', params: { n }, id: n + 1 } })).join('\\n');
String.prototype.includes = () => true;
String.prototype.replace = RegExp.prototype[Symbol.replace] = () => forged;
progress(1, 2, '\\ud800');
await sleep(50);
return 1";
    let told = client.execute("gateway.run_script", json!({ "script": script }));
    assert_eq!(json_of(&told)["output"], 1, "{told}");
    assert!(logged(&log).is_empty(), "{told}");
    assert_eq!(json_of(&client.execute("gateway.run_script", json!({ "script": "return 1" })))["output"], 1);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "finds the worker in /proc")]
fn the_worker_is_shut_in() {
    let (setup, _) = shop();
    let mut client = setup.start_program();
    client.until_ready("shop");
    let script = "await tools.shop.say({ n: 1 }); await sleep(20_000)";
    client
        .begin_call("execute_tool", json!({ "name": "gateway.run_script", "params": { "script": script } }));
    let worker = eventually("it runs", || worker_of(client.pid()));
    let read = |file: &str| fs::read_to_string(format!("/proc/{worker}/{file}")).unwrap_or_default();
    // Every thread has the filter once the script's limits are set.
    eventually("system calls are filtered", || read("status").contains("Seccomp:\t2").then_some(()));
    assert_eq!(read("environ"), "", "it has no variables");
    let limits = read("limits");
    let limit = |name: &str| {
        limits
            .lines()
            .find(|line| line.starts_with(name))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(limit("Max file size"), Some("Max file size 0 0 bytes".into()), "{limits}");
    assert_eq!(limit("Max core file size"), Some("Max core file size 0 0 bytes".into()), "{limits}");
    assert!(limit("Max cpu time").is_some_and(|cpu| !cpu.contains("unlimited")), "{limits}");
    assert!(limit("Max data size").is_some_and(|data| !data.contains("unlimited")), "{limits}");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "finds the worker in /proc")]
fn whenever_the_worker_is_killed_the_script_tells_and_goes_on() {
    let (setup, log) = shop();
    let mut client = setup.start_program();
    client.until_ready("shop");
    for begun in [0, 1, 2, 3, 5, 6, 8, 10, 14] {
        let _ = fs::remove_file(&log);
        let call = client.begin_call(
            "execute_tool",
            json!({ "name": "gateway.run_script", "params": { "script": SCRIPT } }),
        );
        let worker = eventually("it has begun", || {
            let worker = worker_of(client.pid())?;
            (logged(&log).len() >= begun).then_some(worker)
        });
        kill_at_once(worker);
        let told = json_of(&client.result(call));
        // It may have been faster.
        let mut ended = told.clone();
        if told["output"].is_null() {
            let fault = &told["error"];
            assert_eq!(fault["code"], "internal", "{begun}: {told}");
            assert!(
                fault["message"].as_str().is_some_and(|text| text.contains("signal: 9")),
                "{begun}: {told}"
            );
            let step = fault["next_step"]["arguments"].clone();
            ended = match step.is_null() {
                // Nothing had been done.
                true => json_of(&client.execute("gateway.run_script", json!({ "script": SCRIPT }))),
                false => client.answer("execute_tool", step),
            };
        }
        assert_eq!(ended["output"], json!([0, 1, 2, 3, 4, 5, 6, 7]), "{begun}: {ended}");
        let counts = counts(&log);
        assert!(
            counts.len() == 16 && counts.values().all(|count| *count == 1),
            "{begun}: nothing was called twice: {counts:?}"
        );
    }
    // The gateway is as it was.
    let told = json_of(&client.execute("gateway.run_script", json!({ "script": "return 1" })));
    assert_eq!(told["output"], Value::from(1), "{told}");
}
