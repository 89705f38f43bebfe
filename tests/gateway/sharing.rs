//! One gateway for many clients: `[gateway] shared`, and `nonet connect`.

use std::{collections::BTreeSet, fs, process::Stdio, sync::Arc};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{self, Setup, eventually, json_of, logged},
    web::{Site, WebClient},
};

const CLIENTS: usize = 5;

fn tools() -> Value {
    json!([
        { "name": "who", "on": { "counter": true } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "steps", "on": { "progress": 40, "text": "done" } },
        { "name": "echo", "on": { "echo": true } },
    ])
}

/// Returns two servers that append a line to `starts` on each start.
fn shop() -> Setup {
    let setup = Setup::new();
    let log = setup.path("messages");
    setup
        .server(
            "shop",
            json!({ "tools": tools(), "message_log": log, "call_log": log.with_extension("calls") }),
        )
        .server("bank", json!({ "tools": tools() }))
}

fn shared() -> Setup {
    shop().gateway("shared = true\nshared_grace = '200ms'")
}

/// Runs `nonet` in the folder of another test client, up to the handshake.
fn beside(client: &Client, arguments: &[&str]) -> Client {
    let mut client = client.beside(arguments);
    let answer = client.initialize("2025-11-25", json!({}));
    assert_eq!(answer["result"]["serverInfo"]["name"], "nonet", "{answer}");
    client
}

fn pid_of(client: &mut Client, server: &str) -> i32 {
    client.until_ready(server);
    let who = json_of(&client.execute(&format!("{server}.who"), json!({})));
    who["pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("a process id")
}

/// Returns the parent of a process.
fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
    rest.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("a parent")
}

fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Returns a client of a gateway that serves HTTP.
fn connected(site: &Site, arguments: &[&str]) -> Client {
    let url = format!("http://{}", site.address);
    let all: Vec<&str> = ["connect", &url].iter().chain(arguments).copied().collect();
    Client::over(site.folder.clone(), &all, &[])
}

/// Cancels a call of `shop.hang` after its arrival; its server is notified.
fn cancel(client: &mut Client, hanging: i64, site: &Site) {
    let calls = site.folder.path().join("messages.calls");
    let hangs = || logged(&calls).iter().any(|line| line["params"]["name"] == "hang");
    eventually("the call has arrived", || hangs().then_some(()));
    client.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": hanging } }),
    );
    eventually("the server is told", || {
        logged(&calls).iter().any(|line| line.get("cancelled").is_some()).then_some(())
    });
}

#[test]
fn five_clients_that_start_at_once_use_one_set_of_servers() {
    let first = shared().start_program_silently();
    let mut clients: Vec<Client> = (1..CLIENTS).map(|_| first.beside(&[])).collect();
    clients.push(first);
    for client in &mut clients {
        client.initialize("2025-06-18", json!({}));
    }
    for server in ["shop", "bank"] {
        let pids: BTreeSet<i32> = clients.iter_mut().map(|client| pid_of(client, server)).collect();
        assert_eq!(pids.len(), 1, "{server}: {pids:?}");
    }
    let starts = logged(&clients[0].folder.path().join("messages"));
    assert_eq!(starts.iter().filter(|line| line["method"] == "initialize").count(), 1, "{starts:?}");
    // Each client gets the answers to its own ids.
    let calls: Vec<i64> = clients
        .iter_mut()
        .enumerate()
        .map(|(n, client)| client.begin_call("shop__echo", json!({ "n": n })))
        .collect();
    for (n, (client, id)) in clients.iter_mut().zip(calls).enumerate() {
        assert_eq!(json_of(&client.result(id)), json!({ "n": n }));
    }
}

#[test]
fn the_shared_gateway_leaves_after_the_last_client_and_not_before() {
    let mut first = shared().start_program();
    let mut second = beside(&first, &[]);
    let server = pid_of(&mut first, "shop");
    let gateway = parent(server);
    let logs = fs::read_dir(first.folder.path().join(".local/state/nonet/shared")).expect("its folder");
    let logs = logs.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok()).collect::<String>();
    assert!(logs.contains(&format!("the shared gateway is ready pid={gateway}")), "{logs}");
    first.leave();
    assert!(first.ended().success());
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(pid_of(&mut second, "shop"), server, "it stays for the second one");
    second.leave();
    assert!(second.ended().success());
    eventually("gateway and servers have left", || (!alive(gateway) && !alive(server)).then_some(()));
    // The next client starts a new gateway.
    let mut third = beside(&first, &[]);
    assert_ne!(pid_of(&mut third, "shop"), server);
}

#[test]
fn the_socket_of_the_shared_gateway_is_made_again() {
    let mut first = shared().start_program();
    let server = pid_of(&mut first, "shop");
    let state = first.folder.path().join(".local/state/nonet");
    fs::remove_dir_all(&state).expect("it is there");
    let is_socket = |entry: fs::DirEntry| entry.path().extension().is_some_and(|end| end == "sock");
    eventually("the socket is there", || {
        fs::read_dir(state.join("shared")).ok()?.flatten().any(is_socket).then_some(())
    });
    let mut second = beside(&first, &[]);
    assert_eq!(pid_of(&mut second, "shop"), server, "the same gateway answers");
}

#[test]
fn a_background_task_keeps_the_shared_gateway_until_it_has_ended() {
    let mut client = shared().start_program();
    let server = pid_of(&mut client, "shop");
    let task = client.execute("gateway.background_run", json!({ "name": "shop.hang" }));
    let task = json_of(&task)["task_id"].clone();
    client.leave();
    client.ended();
    std::thread::sleep(std::time::Duration::from_millis(800));
    assert!(alive(server));
    let mut next = beside(&client, &[]);
    assert_eq!(pid_of(&mut next, "shop"), server);
    let told = json_of(&next.execute("gateway.background_run", json!({ "task_id": task, "cancel": true })));
    assert!(told.to_string().contains("cancel"), "{told}");
}

#[test]
fn clients_go_on_when_the_shared_gateway_is_killed() {
    let mut first = shared().start_program();
    let mut second = beside(&first, &[]);
    let server = pid_of(&mut first, "shop");
    let hanging = second.begin_call("shop__hang", json!({}));
    let calls = first.folder.path().join("messages.calls");
    eventually("the call has arrived", || (logged(&calls).len() > 1).then_some(()));
    kill(Pid::from_raw(parent(server)), Signal::SIGKILL).expect("it can be killed");
    // Calls in flight are answered; later ones work in the same session.
    let error = second.finish(hanging);
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("in flight")), "{error}");
    for client in [&mut first, &mut second] {
        // A request sent before the loss was noticed is answered too.
        eventually("it answers again", || client.request("ping", json!({})).get("result").map(|_| ()));
    }
    let pids = [pid_of(&mut first, "shop"), pid_of(&mut second, "shop")];
    assert_eq!(pids[0], pids[1]);
    assert_ne!(pids[0], server);
    eventually("the old server has left", || (!alive(server)).then_some(()));
}

#[test]
fn a_client_hears_of_changes_after_the_shared_gateway_was_killed() {
    let docs = json!({
        "resources": [{ "uri": "note://a", "text": "a" }],
        "tools": [{ "name": "touch", "on": { "touch": "note://a", "text": "done" } }],
    });
    let mut client = shared().server("docs", docs).start_program();
    client.until_ready("docs");
    let taken = client.request("resources/subscribe", json!({ "uri": "note://a" }));
    assert!(taken.get("result").is_some(), "{taken}");
    let told = |client: &mut Client| {
        client.execute("docs.touch", json!({}));
        client.request("ping", json!({}));
        let notes = std::mem::take(&mut client.notifications);
        notes.iter().any(|note| note["method"] == "notifications/resources/updated").then_some(())
    };
    eventually("the client is told", || told(&mut client));
    let server = pid_of(&mut client, "shop");
    kill(Pid::from_raw(parent(server)), Signal::SIGKILL).expect("it can be killed");
    eventually("the old server has left", || (!alive(server)).then_some(()));
    eventually("it answers again", || client.request("ping", json!({})).get("result").map(|_| ()));
    client.until_ready("docs");
    eventually("the client is told again", || told(&mut client));
}

#[test]
fn a_profile_holds_for_its_client_alone() {
    let profile = "[profiles.reader]\ncategories = ['bank']";
    let mut all = shared().toml(profile).start_program();
    all.until_ready("bank");
    all.until_ready("shop");
    let mut reader = beside(&all, &["--profile", "reader"]);
    let categories = |client: &mut Client| client.answer("list_categories", json!({})).to_string();
    assert!(categories(&mut all).contains("shop"));
    assert!(!categories(&mut reader).contains("shop"));
    let mut unknown = all.beside(&["--profile", "nobody"]);
    assert!(!unknown.ended().success());
}

#[test]
fn a_gateway_that_serves_http_serves_connect_too() {
    let site = shop().serve_program();
    let mut clients: Vec<Client> =
        (0..3).map(|_| Client::over(site.folder.clone(), &["connect"], &[])).collect();
    clients.push(connected(&site, &[]));
    clients.push(connected(&site, &[]));
    let mut pids = BTreeSet::new();
    for client in &mut clients {
        client.initialize("2025-06-18", json!({}));
        pids.insert(pid_of(client, "shop"));
    }
    assert_eq!(pids.len(), 1, "{pids:?}");
    let server = *pids.first().expect("one");
    assert_eq!(parent(server), i32::try_from(site.pid()).expect("a process id"));
}

#[test]
fn everything_of_a_session_passes_over_http() {
    let site = shop().serve_program();
    let mut client = connected(&site, &[]);
    client.initialize("2025-06-18", json!({ "elicitation": {} }));
    client.answer_questions(|_| json!({ "action": "accept", "content": { "answer": "blue" } }));
    client.until_ready("shop");
    // Questions of the gateway.
    let told = client.answer("ask_user", json!({ "question": "Which?", "choices": ["red", "blue"] }));
    assert_eq!(told, json!({ "status": "answered", "answer": "blue" }));
    // Progress, in order and before the answer.
    let params = json!({ "name": "shop__steps", "_meta": { "progressToken": "p" } });
    let answer = client.request("tools/call", params);
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    let steps = client.notifications.iter().filter_map(|note| note["params"]["progress"].as_f64());
    assert_eq!(steps.collect::<Vec<_>>(), (1..=40).map(f64::from).collect::<Vec<_>>());
    // A cancel.
    let hanging = client.begin_call("shop__hang", json!({}));
    cancel(&mut client, hanging, &site);
    client.leave();
    assert!(client.ended().success());
}

#[test]
fn the_stateless_era_passes_over_http() {
    let site = shop().serve_program();
    let mut client = connected(&site, &[]);
    let found = client.modern("server/discover", json!({}), json!({}));
    assert!(found["result"]["supportedVersions"].to_string().contains("2026-07-28"), "{found}");
    eventually("`shop` is ready", || {
        let params = json!({ "name": "execute_tool", "arguments": { "name": "shop.who" } });
        let answer = client.modern("tools/call", params, json!({}));
        (answer["result"]["isError"] != true).then_some(())
    });
    let params = json!({ "name": "shop__echo", "arguments": { "text": "grüße" } });
    let answer = client.modern("tools/call", params, json!({}));
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert_eq!(json_of(&answer["result"]), json!({ "text": "grüße" }));
    let unknown = client.modern("no/such", json!({}), json!({}));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    // A cancel closes the request.
    let params = json!({ "name": "shop__hang", "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    } });
    let hanging = client.begin("tools/call", params);
    cancel(&mut client, hanging, &site);
}

#[test]
fn a_client_goes_on_when_the_gateway_behind_the_address_was_started_anew() {
    let mut site = shop().serve_program();
    let mut client = connected(&site, &[]);
    client.initialize("2025-06-18", json!({}));
    let server = pid_of(&mut client, "shop");
    let address = site.address.clone();
    site.child().kill().expect("it can be killed");
    site.child().wait().expect("it ends");
    let id = client.begin_call("list_categories", json!({}));
    *site.child() = command(site.folder.path())
        .args(["serve", "--http", &address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nonet starts");
    // Repeated after the gateway has lost the session: nothing is lost.
    let answer = client.finish(id);
    assert!(answer["result"]["content"].is_array(), "{answer}");
    assert_ne!(pid_of(&mut client, "shop"), server);
}

#[test]
fn a_token_leads_to_its_profile() {
    let site = shop()
        .toml("[profiles.reader]\ncategories = ['bank']\ntokens = ['reader-0123456789']")
        .serve_program();
    let url = format!("http://{}", site.address);
    let token = [("NONET_TOKEN", "reader-0123456789")];
    let mut reader = Client::over(site.folder.clone(), &["connect", &url], &token);
    reader.initialize("2025-06-18", json!({}));
    let categories = eventually("`bank` is listed", || {
        let categories = reader.answer("list_categories", json!({})).to_string();
        categories.contains("bank").then_some(categories)
    });
    assert!(!categories.contains("shop"), "{categories}");
    let mut stranger = connected(&site, &[]);
    let answer = stranger.initialize("2025-06-18", json!({}));
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("token")), "{answer}");
}

#[test]
fn what_is_no_gateway_is_told_in_the_answer() {
    let setup = shop();
    setup.write();
    let folder = Arc::new(setup.folder);
    let told = |url: &str, part: &str| {
        let mut client = Client::over(folder.clone(), &["connect", url], &[]);
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        let answer = client.request("initialize", params);
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains(part)), "{answer}");
    };
    let site = shop().serve_program();
    told(&format!("http://{}/nothing/here", site.address), "404");
    drop(site);
    told("http://127.0.0.1:1/mcp", "nonet serve --http");
    let mut faulty = Client::over(folder.clone(), &["connect", "127.0.0.1:8931"], &[]);
    assert_eq!(faulty.ended().code(), Some(2));
    assert!(faulty.stderr().contains("such as http://"), "{}", faulty.stderr());
}

#[test]
fn a_server_per_client_is_started_for_each_and_ends_with_it() {
    let setup = Setup::new()
        .server_with("own", json!({ "tools": tools() }), "scope = 'client'")
        .server("all", json!({ "tools": tools() }));
    let site = setup.serve_program();
    let connected = || {
        let mut client = connected(&site, &[]);
        client.initialize("2025-11-25", json!({}));
        client
    };
    let (mut first, mut second) = (connected(), connected());
    let own = [pid_of(&mut first, "own"), pid_of(&mut second, "own")];
    assert_ne!(own[0], own[1]);
    assert_eq!(pid_of(&mut first, "own"), own[0], "it stays for the session");
    assert_eq!(pid_of(&mut first, "all"), pid_of(&mut second, "all"));
    first.leave();
    assert!(first.ended().success());
    eventually("its server has left", || (!alive(own[0])).then_some(()));
    assert_eq!(pid_of(&mut second, "own"), own[1]);
}

/// Each client has its own session and its own request ids in flight.
#[test]
fn two_hundred_clients_at_once_get_their_own_answers() {
    const WEB_CLIENTS: usize = 200;
    let site = shop().serve_program();
    let mut first = WebClient::new(&site.address, "/mcp");
    first.until_ready("shop");
    let threads: Vec<_> = (0..WEB_CLIENTS)
        .map(|n| {
            let address = site.address.clone();
            std::thread::spawn(move || {
                let mut client = WebClient::new(&address, "/mcp");
                for call in 0..5 {
                    let params = json!({ "client": n, "call": call });
                    let answer = client.call("shop__echo", params.clone());
                    assert_eq!(json_of(&answer), params);
                }
                client
            })
        })
        .collect();
    let _all: Vec<_> = threads.into_iter().map(|it| it.join().expect("no crossed answer")).collect();
}

/// An idle connected client costs little.
#[cfg(target_os = "linux")]
#[test]
fn an_idle_client_takes_less_than_a_megabyte() {
    const IDLE: usize = 200;
    let site = shop().serve_program();
    let connected = || {
        let mut client = WebClient::new(&site.address, "/mcp");
        client.until_ready("shop");
        assert_eq!(json_of(&client.call("shop__echo", json!({ "a": 1 }))), json!({ "a": 1 }));
        client
    };
    let mut clients = vec![connected()];
    let before = setup::memory(site.pid(), "VmRSS");
    clients.extend((0..IDLE).map(|_| connected()));
    let each = setup::memory(site.pid(), "VmRSS").saturating_sub(before) / IDLE;
    println!("{each} bytes for each idle client");
    assert!(each < 1_000_000, "{each} bytes for each idle client");
}

fn nonet(folder: &std::path::Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(folder).args(arguments).output().expect("nonet runs");
    let told = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code(), told.concat())
}

#[test]
fn the_shared_gateway_is_stopped_and_restarted_by_a_command() {
    let mut client = shared().start_program();
    let gateway = parent(pid_of(&mut client, "shop"));
    let folder = client.folder.clone();
    let (code, told) = nonet(folder.path(), &["restart"]);
    assert!(code == Some(0) && told.contains(&format!("process {gateway}")), "{told}");
    assert!(told.contains("It runs again: Nonet ") && !alive(gateway), "{told}");
    eventually("the client goes on", || client.request("ping", json!({})).get("result").map(|_| ()));
    let next = parent(pid_of(&mut client, "shop"));
    assert_ne!(next, gateway);
    // Running work is not lost unasked.
    client.execute("gateway.background_run", json!({ "name": "shop.hang" }));
    let (code, told) = nonet(folder.path(), &["stop"]);
    assert!(code == Some(1) && told.contains("1 running task would be cancelled"), "{told}");
    assert!(alive(next));
    let (code, told) = nonet(folder.path(), &["stop", "--yes"]);
    assert!(
        code == Some(0) && told.contains("has ended") && told.contains("1 client was connected"),
        "{told}"
    );
    assert!(!alive(next));
    client.leave();
    client.ended();
    eventually("nothing runs", || {
        nonet(folder.path(), &["stop"]).1.contains("No shared gateway is running").then_some(())
    });
}

#[test]
fn a_gateway_over_http_is_not_stopped_by_the_command() {
    let site = shop().serve_program();
    let told = eventually("it shares", || {
        let (code, told) = nonet(site.folder.path(), &["stop"]);
        (code == Some(1)).then_some(told)
    });
    assert!(told.contains("serves HTTP: end its process"), "{told}");
}

#[test]
fn every_gateway_is_in_the_status() {
    let mut own = shop().start_program();
    own.until_ready("shop");
    let folder = own.folder.clone();
    let told = eventually("it has a socket", || {
        let (_, told) = nonet(folder.path(), &["status"]);
        told.contains("Your gateways").then_some(told)
    });
    assert!(told.contains("No shared gateway is running"), "{told}");
    let pid = own.child().id().to_string();
    let row = told.lines().find(|line| line.split_whitespace().next() == Some(&*pid));
    let row = row.unwrap_or_else(|| panic!("no row of {pid}: {told}"));
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let file = folder.path().join("servers.toml").display().to_string();
    assert_eq!((cells.len(), cells[1], cells[2]), (6, "stdio", env!("CARGO_PKG_VERSION")), "{cells:?}");
    assert_eq!(cells[4..], ["test", &*file], "{cells:?}");
    let output = command(folder.path()).args(["status", "--json"]).output().expect("nonet runs");
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(status["gateways"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(
        (&status["gateways"][0]["serves"], &status["gateways"][0]["version"]),
        (&json!("stdio"), &json!(env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn what_waits_in_a_chat_is_in_the_list_of_approvals() {
    let setup = shop().toml("[servers.shop.tools.echo]\npolicy = 'approve'");
    let mut client = setup.start_program();
    client.until_ready("shop");
    let fault = client.fault("shop.echo", json!({ "n": 7 }));
    let token = fault["next_step"]["arguments"]["token"].as_str().expect("a token").to_string();
    let folder = client.folder.clone();
    let told = eventually("it is listed", || {
        let (_, told) = nonet(folder.path(), &["approve"]);
        told.contains(&token).then_some(told)
    });
    assert!(told.contains("asked in its chat") && told.contains("\"n\": 7"), "{told}");
    let (code, told) = nonet(folder.path(), &["approve", &token]);
    assert!(code == Some(0) && told.contains("Approved:"), "{told}");
    assert_eq!(
        json_of(&client.execute("shop.echo", json!({ "n": 7 }))),
        json!({ "n": 7 }),
        "it was approved"
    );
    let (code, told) = nonet(folder.path(), &["approve", &token]);
    assert!(code == Some(1) && told.contains("no question with this token"), "{told}");

    // A question in words has no yes or no.
    let asked = client.answer("ask_user", json!({ "question": "Which city?" }));
    let token = asked["token"].as_str().unwrap_or_else(|| panic!("no token: {asked}"));
    for yes_or_no in [&["approve", token][..], &["approve", token, "--deny"]] {
        let (code, told) = nonet(folder.path(), yes_or_no);
        assert!(code == Some(1) && told.contains("add `--answer TEXT`"), "{told}");
    }
    let (code, told) = nonet(folder.path(), &["approve", token, "--answer", "Oslo", "--json"]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((code, &told["answer"], told.get("decision")), (Some(0), &json!("Oslo"), None), "{told}");
    let answered = client.answer("ask_user", json!({ "token": token }));
    assert_eq!(answered["answer"], "Oslo", "{answered}");
    let asked = client.answer("ask_user", json!({ "question": "And then?" }));
    let token = asked["token"].as_str().unwrap_or_else(|| panic!("no token: {asked}"));
    let (_, told) = nonet(folder.path(), &["approve", token, "--answer", "no"]);
    assert!(told.starts_with("Answered:"), "{told}");
}

#[test]
fn a_gateway_that_does_not_say_what_waits_is_named() {
    let mut client = shop().gateway("page = false").start_program();
    client.until_ready("shop");
    let folder = client.folder.clone();
    let told = eventually("it has a socket", || {
        let (_, told) = nonet(folder.path(), &["approve"]);
        told.contains("remove `page = false`").then_some(told)
    });
    assert!(told.contains("in the gateways that answered"), "{told}");
    let output = command(folder.path()).args(["approve", "--json"]).output().expect("nonet runs");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(told["not_asked"].as_array().map(Vec::len), Some(1), "{told}");
}

#[test]
fn a_program_that_is_newer_than_the_gateway_says_how_to_replace_it() {
    use std::io::{BufRead, BufReader, Write};
    let mut client = shared().start_program();
    client.until_ready("shop");
    let folder = client.folder.clone();
    let sockets = folder.path().join(".local/state/nonet/shared");
    let files = fs::read_dir(&sockets).expect("its folder").flatten().map(|file| file.path());
    let socket =
        files.into_iter().find(|file| file.extension().is_some_and(|end| end == "sock")).expect("a socket");
    client.leave();
    client.ended();
    eventually("it has left", || (!socket.exists()).then_some(()));
    // A gateway of long ago: it greets with its version, and knows no inquiry.
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("it is free");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().expect("another handle")).lines();
            let mut stream = stream;
            let _ = lines.next();
            let _ = writeln!(stream, "{}", json!({ "version": "0.0.1" }));
            while let Some(Ok(line)) = lines.next() {
                let id = serde_json::from_str::<Value>(&line).unwrap_or_default()["id"].clone();
                let error = json!({ "code": -32601, "message": "unknown method" });
                let _ = writeln!(stream, "{}", json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            }
        }
    });
    let (code, told) = nonet(folder.path(), &["tools"]);
    assert_eq!(code, Some(0), "{told}");
    let own = env!("CARGO_PKG_VERSION");
    let expected = format!("the running gateway is Nonet 0.0.1, this program is {own}: run `nonet --config");
    assert!(told.contains(&expected) && told.contains(" restart`"), "{told}");
    assert_eq!(told.matches("0.0.1").count(), 1, "{told}");
}
