//! Bearer tokens over HTTP, and addresses that follow the configuration.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{PATIENCE, Setup, eventually},
    web::{OWN_TOKEN, Reply, Site, WebClient, give_token, http, own_header, token_file},
};

const OWNER: &str = "owner-0123456789abcdef";
const READER: &str = "reader-0123456789abcdef";
const WRITER: &str = "writer-0123456789abcdef";

fn setup() -> Setup {
    Setup::new()
        .server("shop", json!({ "tools": [{ "name": "buy" }] }))
        .server("files", json!({ "tools": [{ "name": "read" }] }))
}

fn reader() -> String {
    format!("[profiles.reader]\ncategories = ['files']\ntokens = ['{READER}']\n")
}

fn writer() -> String {
    format!("[profiles.writer]\ncategories = ['shop']\ntokens = ['{WRITER}']\n")
}

fn guarded() -> Site {
    let plain = "[profiles.plain]\n";
    setup().gateway(&format!("tokens = ['{OWNER}']")).toml(&(reader() + &writer() + plain)).serve_program()
}

pub const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;

/// Performs the handshake and returns the reply.
pub fn knock(site: &Site, path: &str, token: &str) -> Reply {
    let authorization = format!("Bearer {token}");
    let headers = Vec::from_iter((!token.is_empty()).then_some(("authorization", authorization.as_str())));
    http(&site.address, "POST", path, &headers, INITIALIZE)
}

/// Returns the message of a refusal.
pub fn message(reply: &Reply) -> String {
    let answer: Value = serde_json::from_str(&reply.body).unwrap_or_else(|_| panic!("no JSON: {reply:?}"));
    assert_eq!((&answer["jsonrpc"], &answer["error"]["code"]), (&json!("2.0"), &json!(-32000)), "{reply:?}");
    answer["error"]["message"].as_str().expect("a message").into()
}

fn profile_of(client: &mut WebClient) -> Vec<String> {
    let list = client.answer("list_categories", json!({}));
    let names = list["categories"].as_array().expect("a list").iter();
    let servers = names
        .filter_map(|category| category["name"].as_str())
        .filter(|name| ["shop", "files"].contains(name));
    servers.map(Into::into).collect()
}

fn edit(site: &Site, change: impl FnOnce(String) -> String) {
    let file = site.folder.path().join("servers.toml");
    let text = change(fs::read_to_string(&file).expect("it is there"));
    let beside = file.with_extension("tmp");
    fs::write(&beside, text).expect("it can be written");
    fs::rename(&beside, &file).expect("it can be renamed");
}

/// Makes a change that removes protection; the user confirms it.
fn edit_and_accept(site: &Site, change: impl FnOnce(String) -> String) {
    edit(site, change);
    command(site.folder.path()).args(["reload", "--accept"]).output().expect("nonet runs");
}

#[test]
fn without_a_token_nobody_comes_in() {
    let site = guarded();
    for path in ["/mcp", "/mcp/reader", "/mcp/plain", "/mcp/nothing"] {
        for token in ["", "guess", &READER[1..]] {
            let reply = knock(&site, path, token);
            assert_eq!(reply.status, 401, "{path} {token}: {reply:?}");
            assert!(reply.headers["www-authenticate"].starts_with("Bearer"), "{reply:?}");
            let told = message(&reply);
            assert!(told.contains("servers.toml") && !told.contains("reader"), "{told}");
        }
        assert_eq!(http(&site.address, "GET", path, &[], "").status, 401);
        assert_eq!(http(&site.address, "DELETE", path, &[], "").status, 401);
    }
    assert_eq!(http(&site.address, "GET", "/metrics", &[], "").status, 401);
    assert_eq!(http(&site.address, "GET", "/healthz", &[], "").status, 200);
    let ready = http(&site.address, "GET", "/readyz", &[], "");
    assert!([200, 503].contains(&ready.status), "{ready:?}");
}

#[test]
fn a_token_decides_what_a_client_sees() {
    let site = guarded();
    let open = |path: &str, token: &str| WebClient::with_token(&site.address, path, token);
    let mut owner = open("/mcp", OWNER);
    owner.until_ready("shop");
    owner.until_ready("files");
    assert_eq!(profile_of(&mut owner), ["files", "shop"]);
    for path in ["/mcp", "/mcp/reader"] {
        let mut client = open(path, READER);
        assert_eq!(profile_of(&mut client), ["files"], "{path}");
        let refused = client.answer("execute_tool", json!({ "name": "shop.buy" }));
        assert_eq!(refused["error"]["code"], "unknown_tool", "{refused}");
    }
    assert_eq!(profile_of(&mut open("/mcp", WRITER)), ["shop"]);
    assert_eq!(profile_of(&mut open("/mcp/writer", OWNER)), ["shop"]);
    assert_eq!(profile_of(&mut open("/mcp/plain", OWNER)), ["files", "shop"]);
    for path in ["/mcp/writer", "/mcp/plain", "/mcp/nothing"] {
        let refused = knock(&site, path, READER);
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
        assert!(message(&refused).contains("`/mcp`"), "{refused:?}");
    }
    let unknown = knock(&site, "/mcp/nothing", OWNER);
    assert_eq!((unknown.status, message(&unknown)), (404, "there is no profile `nothing`".into()));

    // A session belongs to its profile: other tokens cannot use it.
    let mut stolen = open("/mcp", READER);
    stolen.authorization = format!("Bearer {WRITER}");
    assert_eq!(stolen.request("ping", json!({})).status, 404);
    stolen.authorization.clear();
    assert_eq!(stolen.request("ping", json!({})).status, 401);

    let metrics = |token: &str| {
        let authorization = format!("Bearer {token}");
        http(&site.address, "GET", "/metrics", &[("authorization", &authorization)], "").status
    };
    assert_eq!((metrics(OWNER), metrics(READER), metrics("guess")), (200, 403, 401));
}

#[test]
fn changed_tokens_hold_for_the_next_request() {
    let site = guarded();
    let mut client = WebClient::with_token(&site.address, "/mcp", READER);
    assert_eq!(client.request("ping", json!({})).status, 200);
    let newer = "newer-0123456789abcdef";
    edit(&site, |text| text.replace(READER, newer));
    eventually("the old token is of no use", || {
        (client.request("ping", json!({})).status == 401).then_some(())
    });
    client.authorization = format!("Bearer {newer}");
    assert_eq!(client.request("ping", json!({})).status, 200, "the session goes on");
    // A faulty entry leaves the profile and its token unchanged.
    edit(&site, |text| text.replace(newer, "short"));
    eventually("the fault is told", || {
        let log = fs::read_to_string(site.folder.path().join("stderr")).ok()?;
        log.contains("profiles.reader.tokens[0]: this value must have at least 16 characters").then_some(())
    });
    assert_eq!(client.request("ping", json!({})).status, 200);
    // Without any token in the file, the user's own counts.
    edit_and_accept(&site, |text| {
        text.lines().filter(|line| !line.starts_with("tokens")).collect::<Vec<_>>().join("\n")
    });
    eventually("the user's token counts", || (knock(&site, "/mcp", OWN_TOKEN).status == 200).then_some(()));
    assert_eq!((knock(&site, "/mcp", "").status, knock(&site, "/mcp", OWNER).status), (401, 401));
}

#[test]
fn a_token_that_moves_to_another_profile_is_that_ones_alone() {
    let site = guarded();
    // `reader` has a fault and keeps its old version, except for the token that now belongs to `writer`.
    edit_and_accept(&site, |text| {
        text.replace(WRITER, READER).replacen(
            &format!("tokens = ['{READER}']"),
            "tokens = ['third-0123456789abcdef']\nalow = ['x']",
            1,
        )
    });
    eventually("the token is the writer's", || {
        (knock(&site, "/mcp/writer", READER).status == 200).then_some(())
    });
    let mut client = WebClient::with_token(&site.address, "/mcp", READER);
    client.until_ready("shop");
    assert_eq!(profile_of(&mut client), ["shop"]);
    assert_eq!(knock(&site, "/mcp/reader", READER).status, 403);
}

#[test]
fn a_profile_whose_token_is_not_set_stays_shut() {
    let site = setup()
        .toml("[profiles.reader]\ntokens = ['${NONET_NO_SUCH_TOKEN}']\n[profiles.plain]\n")
        .serve_program();
    for path in ["/mcp", "/mcp/reader", "/mcp/plain"] {
        for token in ["", "${NONET_NO_SUCH_TOKEN}"] {
            assert_eq!(knock(&site, path, token).status, 401, "{path}");
        }
    }
    assert_eq!(http(&site.address, "GET", "/metrics", &[], "").status, 401);
    let errors = fs::read_to_string(site.folder.path().join("stderr")).expect("a log");
    assert!(errors.contains("profiles.reader.tokens[0]: the environment variable"), "{errors}");
}

#[test]
fn no_token_is_ever_shown() {
    let site = guarded();
    let mut client = WebClient::with_token(&site.address, "/mcp", OWNER);
    client.until_ready("shop");
    let status = client.call("execute_tool", json!({ "name": "gateway.status" })).to_string();
    knock(&site, "/mcp/writer", READER);
    let log = fs::read_to_string(site.folder.path().join("stderr")).expect("a log");
    let mut told = vec![status, log];
    for arguments in [["check", "--json"], ["check", "--log=trace"]] {
        let output = command(site.folder.path()).args(arguments).output().expect("nonet runs");
        told.push(String::from_utf8_lossy(&output.stdout).into_owned());
        told.push(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    for token in [OWNER, READER, WRITER] {
        assert!(told.iter().all(|text| !text.contains(token)), "{told:#?}");
    }
}

#[test]
fn addresses_follow_the_profiles() {
    let site = setup().toml("[profiles.reader]\ncategories = ['files']\n").serve_program();
    let unknown = knock(&site, "/mcp/writer", "");
    assert_eq!(unknown.status, 404, "{unknown:?}");
    assert_eq!(message(&unknown), "there is no profile `writer`; profiles: reader");
    let mut old = WebClient::new(&site.address, "/mcp/reader");
    let mut plain = WebClient::new(&site.address, "/mcp");
    plain.until_ready("shop");
    edit_and_accept(&site, |text| {
        text.replace("[profiles.reader]\ncategories = ['files']", "[profiles.writer]\ncategories = ['shop']")
    });
    eventually("the new address is there", || (knock(&site, "/mcp/writer", "").status == 200).then_some(()));
    assert_eq!(profile_of(&mut WebClient::new(&site.address, "/mcp/writer")), ["shop"]);
    assert_eq!(old.request("ping", json!({})).status, 404);
    assert_eq!(knock(&site, "/mcp/reader", "").status, 404);
    // The profile returns; its sessions do not. Other sessions were never closed.
    edit(&site, |text| format!("{text}\n[profiles.reader]\ncategories = ['files']\n"));
    eventually("the old address is there again", || {
        (knock(&site, "/mcp/reader", "").status == 200).then_some(())
    });
    assert_eq!(old.request("ping", json!({})).status, 404);
    assert_eq!(plain.request("ping", json!({})).status, 200);
}

#[test]
fn an_open_stream_ends_with_its_profile() {
    let site = setup().toml("[profiles.reader]\ncategories = ['files']\n").serve_program();
    let client = WebClient::new(&site.address, "/mcp/reader");
    let mut stream = TcpStream::connect(&site.address).expect("nonet listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let request = format!(
        "GET /mcp/reader HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nMcp-Session-Id: {}\r\nConnection: close\r\n{}\r\n",
        site.address,
        client.session,
        own_header(&site.address)
    );
    stream.write_all(request.as_bytes()).expect("nonet reads");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("the stream is open");
    assert_eq!(&head, b"HTTP/1.1 200");
    edit_and_accept(&site, |text| text.replace("[profiles.reader]\ncategories = ['files']\n", ""));
    // Reading to the end fails after `PATIENCE` if it stays open.
    stream.read_to_end(&mut Vec::new()).expect("the stream ends");
}

#[test]
fn without_tokens_in_the_file_the_users_own_token_is_made_and_needed() {
    use std::os::unix::fs::MetadataExt;
    let site = setup().serve_for_the_first_time("127.0.0.1:0");
    let file = token_file(site.folder.path());
    let token = fs::read_to_string(&file).expect("a token");
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!((token.len(), mode(&file), mode(file.parent().expect("a folder"))), (32, 0o600, 0o700));
    let told = fs::read_to_string(site.folder.path().join("stderr")).expect("a log");
    assert!(told.contains(&file.display().to_string()) && !told.contains(&token), "{told}");
    for wrong in ["", "guess", OWN_TOKEN] {
        let refused = knock(&site, "/mcp", wrong);
        assert_eq!(
            (refused.status, &refused.headers["www-authenticate"][..6]),
            (401, "Bearer"),
            "{refused:?}"
        );
        let told = message(&refused);
        assert!(told.contains("http.token") && !told.contains(&*token), "{told}");
    }
    let metrics = |headers: &[(&str, &str)]| http(&site.address, "GET", "/metrics", headers, "").status;
    let authorization = format!("Bearer {token}");
    assert_eq!((metrics(&[]), metrics(&[("authorization", &authorization)])), (401, 200));
    let mut client = WebClient::with_token(&site.address, "/mcp", &token);
    client.until_ready("shop");
    assert_eq!(profile_of(&mut client), ["files", "shop"]);
    // Nonet's own clients find it.
    let url = format!("http://{}", site.address);
    let mut bridged = Client::over(site.folder.clone(), &["connect", &url], &[]);
    bridged.initialize("2025-06-18", json!({}));
    assert!(bridged.answer("list_categories", json!({})).to_string().contains("shop"));
    let tools = command(site.folder.path()).args(["tools", "--url", &url]).output().expect("nonet runs");
    assert!(String::from_utf8_lossy(&tools.stdout).contains("shop.buy"), "{tools:?}");
    // Another token takes effect without a restart.
    give_token(site.folder.path());
    eventually("the new token counts", || (knock(&site, "/mcp", OWN_TOKEN).status == 200).then_some(()));
    assert_eq!(knock(&site, "/mcp", &token).status, 401);
}

/// The user's token opens the door and changes nothing else: sessions are as separate as without a token.
#[test]
fn sessions_with_the_users_token_keep_their_tasks_apart() {
    let late = json!({ "tools": [{ "name": "late", "on": { "delay_ms": 30_000 } }] });
    let site = Setup::new().server("shop", late).serve();
    let (mut one, mut other) = (WebClient::new(&site.address, "/mcp"), WebClient::new(&site.address, "/mcp"));
    one.until_ready("shop");
    let task = one.answer("execute_tool", json!({ "name": "shop.late", "background": true }));
    let id = task["task_id"].as_str().unwrap_or_else(|| panic!("{task}")).to_string();
    let look = json!({ "name": "gateway.background_run", "params": { "list_tasks": true } });
    let listed = |client: &mut WebClient| client.answer("execute_tool", look.clone()).to_string();
    assert!(listed(&mut one).contains(&id) && !listed(&mut other).contains(&id));
}

/// Sends a request to `/mcp` as a program that is not the test's. Returns the first line of the answer.
#[cfg(target_os = "linux")]
fn knock_as(user: u32, address: &str) -> String {
    use std::os::unix::process::CommandExt;
    let (host, port) = address.split_once(':').expect("a port");
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{port}; printf 'POST /mcp HTTP/1.1\\r\\nHost: {address}\\r\\nAccept: */*\\r\\n\
         Content-Type: application/json\\r\\nConnection: close\\r\\nContent-Length: {}\\r\\n\\r\\n%s' '{INITIALIZE}' >&3; head -1 <&3",
        INITIALIZE.len()
    );
    let output =
        std::process::Command::new("bash").args(["-c", &script]).uid(user).output().expect("bash runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn without_any_token_other_users_of_this_machine_stay_out_and_the_user_is_warned() {
    let site = setup().gateway("allow_without_tokens = true").serve_program();
    let told = fs::read_to_string(site.folder.path().join("stderr")).expect("a log");
    assert!(told.contains("allow_without_tokens"), "{told}");
    let check = command(site.folder.path()).arg("check").output().expect("nonet runs");
    let told = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.success() && told.contains("allow_without_tokens"), "{told}");
    assert_eq!(http(&site.address, "POST", "/mcp", &[("authorization", "")], INITIALIZE).status, 200);
    let own = nix::unistd::geteuid().as_raw();
    assert!(knock_as(own, &site.address).contains(" 200 "));
    if own != 0 {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let refused = knock_as(65_534, &site.address);
    assert!(refused.contains(" 403 "), "{refused}");
}
