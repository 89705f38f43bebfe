//! No child survives the gateway, however it dies.

use std::{fs, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually},
};

/// How the gateway ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Eof,
    Signal(Signal),
}

const ENDS: [End; 4] =
    [End::Eof, End::Signal(Signal::SIGTERM), End::Signal(Signal::SIGINT), End::Signal(Signal::SIGKILL)];

/// Enough time for a server to start.
const SETTLED: Duration = Duration::from_millis(500);

/// Whether a process is running, and not a zombie.
fn alive(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    // `pid (name) state ...`; a zombie has ended but is not reaped.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Returns a gateway with a server of each kind, and the process ids that must not outlive the gateway.
fn family(kinds: &[(&str, Value)]) -> (Client, Vec<String>) {
    let mut setup = Setup::new();
    let mut files = Vec::new();
    for (name, script) in kinds {
        let mut script = script.clone();
        let file = setup.path(&format!("{name}.pid"));
        script["pid_file"] = json!(file);
        files.push(file);
        setup = setup.server(name, script);
    }
    let client = setup.start_program();
    let pids = files.iter().map(|file| {
        eventually("the server has started", || fs::read_to_string(file).ok().filter(|pid| !pid.is_empty()))
    });
    let pids = pids.collect();
    (client, pids)
}

fn end(client: &mut Client, how: End) {
    match how {
        End::Eof => client.leave(),
        End::Signal(signal) => {
            let pid = i32::try_from(client.pid()).expect("a process id");
            kill(Pid::from_raw(pid), signal).expect("it can be signalled");
        }
    }
}

fn nobody_is_left(kinds: &[(&str, Value)]) {
    std::thread::scope(|scope| {
        for how in ENDS {
            scope.spawn(move || {
                let (mut client, pids) = family(kinds);
                for (name, script) in kinds {
                    match script["start_delay_ms"].is_null() {
                        true => client.until_ready(name),
                        false => std::thread::sleep(SETTLED),
                    }
                }
                assert!(pids.iter().all(|pid| alive(pid)), "{how:?}");
                end(&mut client, how);
                let status = client.ended();
                if !matches!(how, End::Signal(Signal::SIGKILL)) {
                    assert_eq!(status.code(), Some(0), "{how:?}");
                }
                eventually(&format!("all of {pids:?} have ended after {how:?}"), || {
                    pids.iter().all(|pid| !alive(pid)).then_some(())
                });
            });
        }
    });
}

fn tools() -> Value {
    json!([{ "name": "hang", "on": { "hang": true } }])
}

#[test]
fn a_server_ends_with_the_gateway() {
    nobody_is_left(&[("plain", json!({ "tools": tools() }))]);
}

#[test]
fn a_servers_own_children_end_with_the_gateway() {
    nobody_is_left(&[("parent", json!({ "tools": tools(), "grandchild": true }))]);
}

#[test]
fn a_server_that_does_not_want_to_leave_ends_with_the_gateway() {
    nobody_is_left(&[
        ("deaf", json!({ "tools": tools(), "ignore_eof": true })),
        (
            "stubborn",
            json!({ "tools": tools(), "ignore_eof": true, "ignore_sigterm": true, "grandchild": true }),
        ),
    ]);
}

#[test]
fn a_server_that_is_still_starting_ends_with_the_gateway() {
    nobody_is_left(&[("slow", json!({ "start_delay_ms": 60_000, "ignore_eof": true }))]);
}

#[test]
fn a_server_that_has_just_been_spawned_ends_with_the_gateway() {
    for _ in 0..8 {
        let script = json!({ "start_delay_ms": 60_000, "ignore_eof": true });
        let (mut client, pids) = family(&[("slow", script)]);
        end(&mut client, End::Signal(Signal::SIGKILL));
        client.ended();
        let left = (0..100).all(|_| {
            std::thread::sleep(Duration::from_millis(50));
            alive(&pids[0])
        });
        if left {
            let pid = pids[0].parse().expect("a process id");
            kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is ours");
            panic!("{pid} has outlived the gateway");
        }
    }
}

#[test]
fn a_server_in_the_middle_of_a_call_ends_with_the_gateway() {
    std::thread::scope(|scope| {
        for how in ENDS {
            scope.spawn(move || {
                let busy = json!({ "tools": tools(), "ignore_eof": true, "grandchild": true });
                let (mut client, pids) = family(&[("busy", busy)]);
                client.until_ready("busy");
                client.begin_call("busy__hang", json!({}));
                end(&mut client, how);
                client.ended();
                eventually("it has ended", || pids.iter().all(|pid| !alive(pid)).then_some(()));
            });
        }
    });
}

#[test]
fn what_a_crashed_server_leaves_behind_is_ended_at_once() {
    let tools = json!([{ "name": "crash", "on": { "crash": true } }]);
    let (mut client, pids) = family(&[("parent", json!({ "tools": tools, "grandchild": true }))]);
    client.until_ready("parent");
    client.fault("parent.crash", json!({}));
    eventually("the grandchild has ended", || pids.iter().all(|pid| !alive(pid)).then_some(()));
}

#[test]
fn an_http_gateway_ends_its_servers_too() {
    let setup = Setup::new();
    let file = setup.path("plain.pid");
    let site = setup
        .server("plain", json!({ "tools": tools(), "pid_file": file, "grandchild": true }))
        .serve_program();
    let pid =
        eventually("the server has started", || fs::read_to_string(&file).ok().filter(|pid| !pid.is_empty()));
    let own = i32::try_from(site.pid()).expect("a process id");
    kill(Pid::from_raw(own), Signal::SIGTERM).expect("it can be signalled");
    eventually("it has ended", || (!alive(&pid)).then_some(()));
}
