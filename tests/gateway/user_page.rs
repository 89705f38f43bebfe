//! `nonet ui`: the page of the gateway shared by clients on stdio.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::{Mutex, MutexGuard},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::command,
    setup::{Setup, eventually},
    shell::Terminal,
    web::{Reply, http},
};

/// One test at a time: all tests use the same ports.
static PORTS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    PORTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn shop(gateway: &str) -> Setup {
    let script = json!({ "tools": [{ "name": "buy", "description": "Buys a thing" }] });
    Setup::new().server("shop", script).gateway(gateway)
}

fn ui(folder: &Path, arguments: &[&str]) -> Output {
    command(folder).arg("ui").args(arguments).stdin(Stdio::null()).output().expect("nonet runs")
}

/// Returns the link printed by a command.
fn link(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

/// Returns the address and the token of a link.
fn parts(link: &str) -> (String, String) {
    let (address, token) = link.split_once("/ui#token=").unwrap_or_else(|| panic!("no link: {link}"));
    (address.trim_start_matches("http://").into(), token.into())
}

fn get(link: &str, path: &str) -> Reply {
    let (address, token) = parts(link);
    http(&address, "GET", path, &[("X-Nonet-Token", &token)], "")
}

/// Returns the process of the gateway that has a page.
fn gateway(link: &str) -> i32 {
    let state: Value = serde_json::from_str(&get(link, "/ui/api/state").body).expect("JSON");
    state["pid"].as_i64().and_then(|pid| pid.try_into().ok()).unwrap_or_else(|| panic!("no pid: {state}"))
}

fn is_there(link: &str) -> bool {
    TcpStream::connect(parts(link).0).is_ok()
}

/// Follows the calls, as an open page does.
fn look_at(link: &str) -> TcpStream {
    let (address, token) = parts(link);
    let mut stream = TcpStream::connect(&address).expect("the gateway listens");
    let request = format!("GET /ui/api/calls HTTP/1.1\r\nHost: {address}\r\nX-Nonet-Token: {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut head = [0; 15];
    stream.read_exact(&mut head).expect("it answers");
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    stream
}

/// Returns the files beside the socket.
fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.join(".local/state/nonet/shared")).expect("a folder").flatten();
    all.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains(suffix)).collect()
}

#[test]
fn everybody_gets_one_page_at_a_port_that_stays() {
    let _alone = alone();
    let mut client = shop("shared = true\nshared_grace = '100ms'").start_program();
    client.until_ready("shop");
    let folder = client.folder.clone();
    let first = link(&ui(folder.path(), &["--no-browser"]));
    assert_eq!(link(&ui(folder.path(), &["--no-browser"])), first);
    let (address, token) = parts(&first);
    assert!(address.starts_with("127.0.0.1:") && token.len() >= 32, "{first}");
    assert!(http(&address, "GET", "/ui", &[], "").body.contains("<title>Nonet</title>"));
    let state: Value = serde_json::from_str(&get(&first, "/ui/api/state").body).expect("JSON");
    assert_eq!(state["clients"].as_array().map(Vec::len), Some(1), "{state}");
    // The page is only for its user, and nothing else is served.
    assert_eq!(http(&address, "GET", "/ui/api/state", &[], "").status, 401);
    assert_eq!(http(&address, "GET", "/ui", &[("host", "evil.example")], "").status, 403);
    for path in ["/mcp", "/metrics", "/healthz"] {
        assert_eq!(http(&address, "GET", path, &[("X-Nonet-Token", &token)], "").status, 404, "{path}");
    }
    for log in files(folder.path(), ".log") {
        let log = fs::read_to_string(log).expect("a log");
        assert!(log.contains("the page is served") && !log.contains(&token), "{log}");
    }
    // A killed gateway leaves nothing that blocks the next one.
    let before = gateway(&first);
    kill(Pid::from_raw(before), Signal::SIGKILL).expect("it can be killed");
    eventually("it is gone", || (!is_there(&first)).then_some(()));
    let next = link(&ui(folder.path(), &["--no-browser"]));
    assert_eq!(parts(&next).0, address, "the port stays");
    assert_ne!(parts(&next).1, token, "each gateway has a token of its own");
    assert_ne!(gateway(&next), before);
    kill(Pid::from_raw(gateway(&next)), Signal::SIGTERM).expect("it can be ended");
}

#[test]
fn a_gateway_stays_as_long_as_somebody_looks_at_its_page() {
    let _alone = alone();
    let setup = shop("shared_grace = '100ms'");
    setup.write();
    let output = ui(&setup.path(""), &["--no-browser"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("`shared = true`"), "clients have gateways of their own: {said}");
    let link = link(&output);
    let page = look_at(&link);
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(is_there(&link), "a page is open");
    drop(page);
    eventually("the gateway ends", || (!is_there(&link)).then_some(()));
    assert!(files(&setup.path(""), ".html").is_empty());
}

#[test]
fn a_browser_gets_the_token_by_way_of_a_private_file() {
    let _alone = alone();
    let setup = shop("shared = true\nshared_grace = '100ms'");
    setup.write();
    let browser = setup.path("browser");
    fs::write(&browser, "#!/bin/sh\necho \"$@\" > opened\n").expect("it can be written");
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).expect("it can be run");
    let output = command(&setup.path("")).arg("ui").env("BROWSER", &browser).output().expect("nonet runs");
    let link = link(&output);
    let opened = eventually("the browser is started", || {
        fs::read_to_string(setup.path("opened")).ok().filter(|opened| opened.ends_with('\n'))
    });
    assert!(!opened.contains(&parts(&link).1), "others see the arguments of a program: {opened}");
    let file = PathBuf::from(opened.trim().trim_start_matches("file://"));
    assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&file).expect("readable").contains(&format!("content=\"0;url={link}\"")));
    let _page = look_at(&link);
    eventually("the file is gone", || (!file.exists()).then_some(()));
    kill(Pid::from_raw(gateway(&link)), Signal::SIGTERM).expect("it can be ended");
}

#[test]
fn a_gateway_over_http_has_one_page() {
    let _alone = alone();
    let site = shop("").serve_program();
    let token = site.page_token();
    let again = link(&ui(site.folder.path(), &["--no-browser"]));
    assert_eq!(parts(&again), (site.address.clone(), token.clone()));
    // A log keeps what it gets: only a terminal shows the token.
    let said = fs::read_to_string(site.folder.path().join("stderr")).expect("it is there");
    assert!(said.contains("ui` opens the live page") && !said.contains(&token), "{said}");
}

#[test]
fn a_gateway_over_http_prints_the_link_of_its_page_at_a_terminal() {
    let _alone = alone();
    let setup = shop("");
    setup.write();
    let terminal = Terminal::new();
    let mut serve = command(setup.folder.path());
    let _serving = terminal.spawn(serve.args(["serve", "--http", "127.0.0.1:0"]));
    let mut seen = String::new();
    eventually("the link is printed", || {
        seen.push_str(&terminal.read());
        seen.split_once("live page at http://127.0.0.1:")
            .filter(|(_, rest)| rest.contains("/ui#token="))
            .map(drop)
    });
}

#[test]
fn a_page_of_its_own_process_ends_with_it() {
    let _alone = alone();
    let setup = shop("");
    setup.write();
    let mut child = command(&setup.path(""))
        .args(["ui", "--here", "--no-browser"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("nonet starts");
    let mut printed = String::new();
    let stdout = child.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut printed).expect("a line");
    let link = printed.trim();
    eventually("the server is ready", || {
        let state: Value = serde_json::from_str(&get(link, "/ui/api/state").body).expect("JSON");
        (state["servers"][0]["state"] == "ready").then_some(())
    });
    kill(Pid::from_raw(child.id().try_into().expect("a pid")), Signal::SIGINT).expect("it can be ended");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert!(!is_there(link));
}

#[test]
fn one_page_shows_the_gateways_of_all_clients() {
    let _alone = alone();
    let mut client = shop("shared_grace = '100ms'").start_program();
    client.until_ready("shop");
    let folder = client.folder.clone();
    let link = link(&ui(folder.path(), &["--no-browser"]));
    let _page = look_at(&link);
    let all = || -> Value {
        let told = serde_json::from_str(&get(&link, "/ui/api/gateways").body).expect("JSON");
        let Value::Object(mut told) = told else { panic!("no object: {told}") };
        told.remove("gateways").expect("a list")
    };
    let found = eventually("the client's gateway is there", || Some(all()).filter(|all| all[1].is_object()));
    assert_eq!((&found[0]["serves"], &found[1]["serves"]), (&json!("shared"), &json!("stdio")), "{found}");
    assert_eq!((&found[0]["clients"], &found[1]["clients"][0]), (&json!([]), &json!("test")), "{found}");
    let (address, token) = parts(&link);
    let id = found[1]["id"].as_str().expect("an id").to_string();
    let of_client = |method: &str, path: &str| {
        let headers = [("X-Nonet-Token", &*token), ("X-Nonet-Gateway", &*id)];
        http(&address, method, path, &headers, "")
    };
    // Until a page looks at it, it keeps no calls, whatever else asks it.
    command(folder.path()).args(["status"]).output().expect("nonet runs");
    command(folder.path()).args(["approve"]).output().expect("nonet runs");
    client.execute("shop.buy", json!({}));
    assert_eq!(of_client("GET", "/ui/api/calls/1").status, 404);
    let state: Value = serde_json::from_str(&of_client("GET", "/ui/api/state").body).expect("JSON");
    assert_eq!(state["pid"], found[1]["pid"], "{state}");
    client.execute("shop.buy", json!({}));
    eventually("the call is kept", || (of_client("GET", "/ui/api/calls/1").status == 200).then_some(()));
    assert_ne!(state["pid"], gateway(&link), "the page itself has another");
    // What is done there is done to that gateway.
    assert_eq!(of_client("POST", "/ui/api/servers/shop/hold").status, 204);
    eventually("it is held", || (client.fault_code("shop.buy")? == "server_down").then_some(()));
    // No token, no way on; and no id leads out of the folder.
    assert_eq!(http(&address, "GET", "/ui/api/state", &[("X-Nonet-Gateway", &*id)], "").status, 401);
    for other in ["../../../evil", "nobody"] {
        let reply = http(
            &address,
            "GET",
            "/ui/api/state",
            &[("X-Nonet-Token", &*token), ("X-Nonet-Gateway", other)],
            "",
        );
        assert_eq!(reply.status, 410, "{other}: {reply:?}");
    }
    // What a killed gateway leaves behind is gone once another one has started.
    let sockets = || files(folder.path(), ".page").len();
    let mut killed = client.beside(&[]);
    killed.initialize("2025-06-18", json!({}));
    eventually("its socket is there", || (sockets() == 3).then_some(()));
    kill(Pid::from_raw(killed.child().id().try_into().expect("a pid")), Signal::SIGKILL).expect("it runs");
    killed.child().wait().expect("it ends");
    let mut next = client.beside(&[]);
    next.initialize("2025-06-18", json!({}));
    eventually("the next one has a socket, and the killed one none", || {
        (all().as_array()?.len() == 3 && sockets() == 3).then_some(())
    });
    next.leave();
    next.ended();
    client.leave();
    client.ended();
    eventually("it is off the list", || (all().as_array()?.len() == 1).then_some(()));
    assert_eq!(of_client("GET", "/ui/api/state").status, 410);
}

#[test]
fn what_has_no_page_is_told() {
    let check = |gateway: &str, arguments: &[&str], parts: &[&str]| {
        let setup = shop(gateway);
        setup.write();
        let output = ui(&setup.path(""), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part}: {said}");
        }
    };
    check("", &["--url", "http://host:8931/mcp"], &["`nonet serve --http`", "live page at"]);
    check("page = false", &[], &["`page = false`", "servers.toml"]);
    check("", &["--profile", "reader"], &["--profile has no effect"]);
}
