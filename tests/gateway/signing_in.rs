//! Servers with an OAuth sign-in: `nonet login`, the resulting tokens, and their end.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually, json_of, text_of},
    sign_in_service::{Manner, Mood, Service},
};

fn setup(service: &Service, keys: &str) -> Setup {
    Setup::new().server_of("web", &format!("url = '{}'\n{keys}", service.url()))
}

/// Starts `nonet login` and returns the address that it prints.
fn begin(folder: &Path, arguments: &[&str]) -> (Child, String) {
    let mut child = command(folder)
        .args(["login", "web", "--no-browser", "--timeout", "20s"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nonet starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut all = String::new();
    while stderr.read_line(&mut all).expect("stderr can be read") > 0 {
        if let Some(address) = all.lines().find_map(|line| line.trim().strip_prefix("http")) {
            let address = format!("http{address}");
            child.stderr = Some(stderr.into_inner());
            return (child, address);
        }
    }
    let status = child.wait().expect("it ends");
    panic!("no address, {status}: {all}");
}

/// Follows an address as a browser does. Returns the status and the text of the final page.
pub fn browse(address: &str) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let page = client.get(address).send().await.expect("an answer");
        (page.status().as_u16(), page.text().await.expect("a page"))
    })
}

/// Runs `nonet login` with a user who agrees.
fn login(folder: &Path, arguments: &[&str]) -> Output {
    nonet_wire::web::crypto();
    let (child, address) = begin(folder, arguments);
    browse(&address);
    child.wait_with_output().expect("it ends")
}

fn signed_in(folder: &Path, arguments: &[&str]) {
    let output = login(folder, arguments);
    assert!(output.status.success(), "{output:?}");
}

/// Returns a client whose gateway was running while its user signed in.
fn ready(service: &Service) -> Client {
    let mut client = setup(service, "").start_program();
    client.until("web", "auth_required");
    signed_in(client.folder.path(), &[]);
    client.until_ready("web");
    client
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder).args(arguments).stdin(Stdio::null()).output().expect("nonet runs")
}

fn fault(client: &mut Client, tool: &str) -> Value {
    let result = client.execute(tool, json!({}));
    json_of(&result)["error"].clone()
}

/// Returns the file with the sign-in.
fn kept(folder: &Path) -> std::path::PathBuf {
    let folder = folder.join(".local/state/nonet/oauth");
    let files = fs::read_dir(&folder).expect("the folder is there").flatten();
    files
        .map(|file| file.path())
        .find(|file| file.extension().is_some_and(|it| it == "json"))
        .expect("a file")
}

#[test]
fn a_sign_in_leads_from_a_refusal_to_a_call() {
    let service = Service::start(Manner::default());
    let mut client = setup(&service, "").start_program();
    let folder = client.folder.clone();
    client.until("web", "auth_required");
    let refusal = fault(&mut client, "web.echo");
    assert_eq!(refusal["code"], "auth_required", "{refusal}");
    let status = json_of(&client.execute("gateway.status", json!({})));
    let config = folder.path().join("servers.toml");
    let told = format!("nonet --config {} login web", config.display());
    assert_eq!(status["servers"][0]["login"], json!(told), "{status}");
    let refusals = service.count("refused");
    let notice = json!({
        "kind": "sign_in_needed", "server": "web", "command": told,
        "hint": "Ask the user to run the command in a terminal; the server is then available at once.",
    });
    client.until_notice("sign_in_needed");
    assert_eq!(client.notices, [notice]);

    nonet_wire::web::crypto();
    let (child, address) = begin(folder.path(), &[]);
    // Somebody else's page does not end the sign-in.
    let back = address.split("redirect_uri=").nth(1).and_then(|rest| rest.split('&').next()).expect("it");
    let back = back.replace("%3A", ":").replace("%2F", "/");
    assert_eq!(browse(&format!("{back}?code=x&state=other")).0, 400);
    assert_eq!(browse(&back.replace("/callback", "/favicon.ico")).0, 404);
    let (status, page) = browse(&address);
    assert_eq!((status, page.contains("Signed in")), (200, true), "{page}");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");

    // The running gateway picks up the token and did not ask in between.
    client.until_ready("web");
    assert_eq!(json_of(&client.execute("web.echo", json!({ "a": 1 }))), json!({ "a": 1 }));
    assert!(service.count("refused") <= refusals + 1, "it was tried again and again");
    // The link in the fault of a call has a client of its own.
    assert_eq!((service.count("register"), service.count("code")), (2, 1));

    let file = kept(folder.path());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().expect("a folder"))), (0o600, 0o700));
    }
    let status = client.execute("gateway.status", json!({})).to_string();
    let log = fs::read_to_string(folder.path().join("stderr")).expect("a log");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for (what, text) in
        [("the status", &status), ("the log", &log), ("the command", &said), ("the page", &page)]
    {
        service.assert_hidden(what, text);
    }

    let output = run(folder.path(), &["logout", "web"]);
    assert!(output.status.success() && !file.exists(), "{output:?}");
    assert_eq!(fault(&mut client, "web.echo")["code"], "auth_required");
}

#[test]
fn tokens_are_renewed_by_one_process_at_a_time() {
    // Each token is about to expire when issued, and each refresh token works once.
    let service = Service::start(Manner { expires_in: Some(5), secret: true, ..Manner::default() });
    let setup = setup(&service, "");
    setup.write();
    let folder = std::sync::Arc::new(setup.folder);
    signed_in(folder.path(), &[]);
    let clients = [0, 1, 2].map(|_| {
        let folder = folder.clone();
        std::thread::spawn(move || {
            let mut client = Client::over(folder, &[], &[]);
            client.initialize("2025-06-18", json!({}));
            client.until_ready("web");
            for n in 0..10 {
                assert_eq!(json_of(&client.execute("web.echo", json!({ "n": n }))), json!({ "n": n }));
            }
        })
    });
    for client in clients {
        client.join().expect("its calls came back");
    }
    assert!(service.count("refresh") > 0);
    assert_eq!(service.count("register"), 1);
}

#[test]
fn a_token_that_was_taken_back_is_renewed_within_the_call() {
    let service = Service::start(Manner::default());
    let mut client = ready(&service);
    service.revoke(false);
    assert_eq!(json_of(&client.execute("web.echo", json!({ "a": 1 }))), json!({ "a": 1 }));
    assert_eq!(service.count("refresh"), 1);
}

#[test]
fn a_sign_in_that_is_over_is_told_and_not_tried_again() {
    let service = Service::start(Manner::default());
    let mut client = ready(&service);
    service.revoke(true);
    let over = fault(&mut client, "web.echo");
    assert_eq!(over["code"], "auth_required", "{over}");
    assert!(over["message"].as_str().is_some_and(|text| text.contains("login web`")), "{over}");
    client.until("web", "auth_required");
    let asked = || (service.count("refresh"), service.count("refused"), service.count("mcp"));
    // It may still be shutting the old connection down.
    std::thread::sleep(Duration::from_millis(500));
    let before = asked();
    assert_eq!(before.0, 1);
    for _ in 0..5 {
        assert_eq!(fault(&mut client, "web.echo")["code"], "auth_required");
    }
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(asked(), before, "nobody signed in, so nothing is asked");

    signed_in(client.folder.path(), &[]);
    client.until_ready("web");
    assert_eq!(json_of(&client.execute("web.echo", json!({}))), json!({}));
}

#[test]
fn a_script_that_needs_a_sign_in_waits_for_it() {
    let service = Service::start(Manner::default());
    let mut client = ready(&service);
    let script = "const first = await tools.web.echo({ n: 1 });\nawait ask('Go on?', ['yes']);\n\
                  try { return [first, await tools.web.echo({ n: 2 })] } catch (e) { return e.code }";
    let ask = |client: &mut Client| {
        let asked = json_of(&client.execute("gateway.run_script", json!({ "script": script })));
        assert_eq!(asked["status"], "needs_user", "{asked}");
        service.revoke(true);
        let asked = client.answer("ask_user", json!({ "token": asked["token"], "answer": "yes" }));
        let message = asked["message"].as_str().unwrap_or_default();
        assert!(message.contains("needs a sign-in") && message.contains("login web"), "{asked}");
        asked["token"].clone()
    };
    // The user goes on without it: the script gets the error.
    let token = ask(&mut client);
    let told = client.answer("ask_user", json!({ "token": token, "answer": "skip" }));
    assert_eq!((&told["output"], &told["earlier_calls"]), (&json!("auth_required"), &json!(1)), "{told}");
    // Or signs in.
    service.revoke(false);
    signed_in(client.folder.path(), &[]);
    client.until_ready("web");
    let token = ask(&mut client);
    service.revoke(false);
    signed_in(client.folder.path(), &[]);
    client.until_ready("web");
    let told = client.answer("ask_user", json!({ "token": token, "answer": "done" }));
    assert_eq!(told["output"], json!([{ "n": 1 }, { "n": 2 }]), "{told}");
}

#[test]
fn a_sign_in_server_that_is_down_does_not_end_the_sign_in() {
    let service = Service::start(Manner { expires_in: Some(25), ..Manner::default() });
    let mut client = ready(&service);
    service.set(Mood::Down);
    // The token stays valid a little longer.
    assert_eq!(json_of(&client.execute("web.echo", json!({}))), json!({}));
    service.revoke(false);
    let lost = fault(&mut client, "web.echo");
    assert_eq!(lost["code"], "server_down", "{lost}");
    assert!(lost["message"].as_str().is_some_and(|text| text.contains("could not be renewed")), "{lost}");
    service.set(Mood::Good);
    eventually("it goes on without a new sign-in", || {
        (client.execute("web.echo", json!({}))["isError"] != json!(true)).then_some(())
    });
}

#[test]
fn more_is_allowed_when_a_call_needs_it() {
    let scopes = [("write".to_string(), "files:write".to_string())].into();
    let service = Service::start(Manner { scopes, ..Manner::default() });
    let mut client = ready(&service);
    assert_eq!(service.count("authorize read"), 1, "what the server says that it needs");
    let narrow = fault(&mut client, "web.write");
    assert_eq!(narrow["code"], "auth_required", "{narrow}");
    assert!(narrow["message"].as_str().is_some_and(|text| text.contains("login web --scope files:write`")));
    // Other calls continue.
    assert_eq!(json_of(&client.execute("web.echo", json!({}))), json!({}));
    signed_in(client.folder.path(), &["--scope", "files:write"]);
    assert_eq!(service.count("authorize read files:write"), 1);
    assert_eq!(json_of(&client.execute("web.write", json!({}))), json!({}));
    // A scope once granted is requested again.
    signed_in(client.folder.path(), &[]);
    assert_eq!(service.count("authorize read files:write"), 2);
}

#[test]
fn the_gateway_signs_in_by_itself_where_it_has_a_client_of_its_own() {
    let service = Service::start(Manner { expires_in: Some(5), ..Manner::default() });
    let oauth = "oauth = { grant = 'client_credentials', client_id = 'nightly', client_secret = 'machine-s3cret', \
                 scopes = ['read', 'run'] }";
    let mut client = setup(&service, oauth).start();
    client.until_ready("web");
    assert_eq!(json_of(&client.execute("web.echo", json!({}))), json!({}));
    assert!(service.count("client_credentials") > 1, "it is renewed");
    assert_eq!((service.count("authorize"), service.count("register")), (0, 0));
    let output = run(client.folder.path(), &["login", "web"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_registered_client_is_used_as_it_is_configured() {
    let service = Service::start(Manner { registers: false, ..Manner::default() });
    let setup_of = |keys: &str| {
        let setup = setup(&service, keys);
        setup.write();
        setup.folder
    };
    let folder = setup_of("");
    let output = run(folder.path(), &["login", "web", "--no-browser"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("redirect address http://127.0.0.1:") && said.contains("`client_id`"), "{said}");

    let free =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port");
    let back = format!("http://localhost:{}/done", free.port());
    let folder =
        setup_of(&format!("oauth = {{ client_id = 'known', redirect_uri = '{back}', scopes = ['a b'] }}"));
    nonet_wire::web::crypto();
    let (child, address) = begin(folder.path(), &[]);
    assert!(address.contains("client_id=known") && address.contains("%2Fdone"), "{address}");
    browse(&address);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_login_that_fails_says_why() {
    let check = |manner: Manner, expected: &str| {
        let service = Service::start(manner);
        let setup = setup(&service, "");
        setup.write();
        nonet_wire::web::crypto();
        let mut child = command(setup.folder.path())
            .args(["login", "web", "--no-browser", "--timeout", "2s"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nonet starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut all = String::new();
        while stderr.read_line(&mut all).expect("stderr can be read") > 0 {
            if let Some(line) = all.lines().last()
                && line.trim().starts_with("http")
                && expected != "the browser did not return"
            {
                browse(line.trim());
            }
        }
        let mut rest = String::new();
        let _ = stderr.read_to_string(&mut rest);
        assert_eq!(child.wait().expect("it ends").code(), Some(1), "{all}");
        assert!(all.contains(expected), "{expected}: {all}");
        let kept = fs::read_dir(setup.folder.path().join(".local/state/nonet/oauth")).into_iter().flatten();
        assert!(kept.flatten().all(|file| file.path().extension().is_none_or(|it| it != "json")));
    };
    check(Manner { user_says_no: true, ..Manner::default() }, "refused: access_denied (The user said no)");
    check(Manner::default(), "the browser did not return");
    let metadata = json!({ "authorization_endpoint": "file:///bin/sh" });
    check(Manner { metadata, ..Manner::default() }, "which is not an https address");
    let metadata = json!({ "code_challenge_methods_supported": ["plain"] });
    check(Manner { metadata, ..Manner::default() }, "PKCE");
    let metadata = json!({ "issuer": "http://127.0.0.1:1" });
    check(Manner { metadata, ..Manner::default() }, "issuer");
}

/// Returns how many requests of each kind were received so far.
fn asked(service: &Service) -> [usize; 3] {
    ["refresh", "refused", "mcp"].map(|what| service.count(what))
}

#[test]
fn gateways_that_have_lost_a_sign_in_leave_each_other_alone() {
    // The token has expired, and its renewal does not help.
    for mood in [Mood::Good, Mood::Stubborn] {
        let service = Service::start(Manner::default());
        let mut first = ready(&service);
        let mut second = first.beside(&[]);
        second.initialize("2025-06-18", json!({}));
        second.until_ready("web");
        service.revoke(mood == Mood::Good);
        service.set(mood);
        for client in [&mut first, &mut second] {
            assert_eq!(fault(client, "web.echo")["code"], "auth_required");
            client.until("web", "auth_required");
        }
        std::thread::sleep(Duration::from_millis(1_500));
        let before = asked(&service);
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(asked(&service), before);
    }
}

#[test]
fn a_renewal_outlives_the_call_that_wanted_it() {
    let service = Service::start(Manner::default());
    let mut client = ready(&service);
    service.revoke(false);
    service.set(Mood::Slow);
    let call = json!({ "name": "web.echo", "params": {}, "timeout_ms": 300 });
    let late = client.call("execute_tool", call);
    assert_eq!(json_of(&late)["error"]["code"], "timeout", "{late}");
    // The old refresh token is used up; the new one survived the cancelled call.
    eventually("it goes on", || {
        (client.execute("web.echo", json!({}))["isError"] != json!(true)).then_some(())
    });
    assert_eq!(service.count("refresh"), 1);
}

#[test]
fn what_one_sign_in_server_gave_is_shown_to_no_other() {
    let service = Service::start(Manner { expires_in: Some(5), secret: true, ..Manner::default() });
    let mut client = ready(&service);
    service.set(Mood::Forgetful);
    service.revoke(false);
    assert_eq!(fault(&mut client, "web.echo")["code"], "server_down");
    assert_eq!(service.strayed(), Vec::<String>::new());
    service.set(Mood::Good);
    eventually("it goes on", || {
        (client.execute("web.echo", json!({}))["isError"] != json!(true)).then_some(())
    });
}

#[test]
fn a_client_that_is_not_known_any_more_has_to_sign_in_anew() {
    let service = Service::start(Manner { expires_in: Some(5), ..Manner::default() });
    let mut client = ready(&service);
    service.set(Mood::Estranged);
    assert_eq!(fault(&mut client, "web.echo")["code"], "auth_required");
    let oauth =
        "oauth = { grant = 'client_credentials', client_id = 'nightly', client_secret = 'wrong-s3cret' }";
    let mut client = setup(&service, oauth).start_program();
    client.until("web", "auth_required");
    let before = service.count("client_credentials");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(service.count("client_credentials"), before, "it is not asked again");
    let status = client.execute("gateway.status", json!({})).to_string();
    assert!(!status.contains("login") && !status.contains("wrong-s3cret"), "{status}");
}

#[test]
fn a_login_ends_whatever_browsers_and_servers_do() {
    nonet_wire::web::crypto();
    let service = Service::start(Manner::default());
    let setup = setup(&service, "");
    setup.write();
    let (child, address) = begin(setup.folder.path(), &[]);
    let back = address.split("redirect_uri=http%3A%2F%2F").nth(1).and_then(|rest| rest.split("%2F").next());
    let back = back.expect("an address").replace("%3A", ":");
    // Half a request, and a page loaded twice.
    let mut half = std::net::TcpStream::connect(&back).expect("it listens");
    std::io::Write::write_all(&mut half, b"GET /callback HTTP/1.1\r\n").expect("it reads");
    browse(&address);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert!(kept(setup.folder.path()).exists());

    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("url = 'http://{}/mcp'", silent.local_addr().expect("it is bound"));
    let setup = Setup::new().server_of("web", &url);
    setup.write();
    let output = run(setup.folder.path(), &["login", "web", "--no-browser", "--timeout", "1s"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("no answer within 1s"), "{said}");
}

#[test]
fn servers_without_a_sign_in_are_told_apart() {
    let setup = Setup::new()
        .server_of("keyed", "url = 'http://127.0.0.1:9/mcp'\nheaders = { Authorization = 'Bearer x' }")
        .server_of("far", "url = 'http://127.0.0.1:9/mcp'")
        .server("near", json!({}));
    setup.write();
    let said = |server: &str, code: i32| {
        let output = run(setup.folder.path(), &["login", server, "--no-browser"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said("keyed", 2).contains("sends the `Authorization`"));
    assert!(said("near", 2).contains("is a program"));
    assert!(said("other", 2).contains("servers with a sign-in: far"));
    assert!(said("far", 1).contains("cannot be reached"));
    let output = run(setup.folder.path(), &["logout", "far"]);
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("There was no sign-in")
    );
}

#[test]
fn a_rest_service_is_signed_in_to_as_well() {
    let service = Service::start(Manner::default());
    let endpoint = "[servers.web.endpoints.look]\npath = '/look'";
    let keys = format!("base_url = '{}'\n{endpoint}", service.url());
    let mut client = Setup::new().server_of("web", &keys).start_program();
    client.until_ready("web");
    // Public operations continue, so the server stays ready.
    let refusal = fault(&mut client, "web.look");
    assert_eq!(refusal["code"], "auth_required", "{refusal}");
    assert!(refusal["message"].as_str().expect("a message").contains("login web"), "{refusal}");
    assert_eq!(client.server("web")["state"], "ready");
    signed_in(client.folder.path(), &[]);
    let through = |client: &mut Client| client.execute("web.look", json!({}));
    // The service behind the sign-in has no such path.
    assert!(text_of(&through(&mut client)).starts_with("HTTP 404"));
    service.revoke(false);
    assert!(text_of(&through(&mut client)).starts_with("HTTP 404"), "the token was renewed");
    assert_eq!(service.count("refresh"), 1);
    service.revoke(true);
    let refusal = fault(&mut client, "web.look");
    assert_eq!(refusal["code"], "auth_required", "{refusal}");
    assert!(refusal["message"].as_str().expect("a message").contains("login web"), "{refusal}");
    service.assert_hidden("stderr", &client.stderr());
}
