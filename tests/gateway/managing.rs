//! Actions of a person on the live page (servers, tools, clients), as the page's HTTP requests.

use std::{fs, thread};

use serde_json::{Value, json};

use crate::{
    client::Client,
    inside::serve_script,
    registry_service::RegistryService,
    setup::{Setup, eventually, fake_server},
    sign_in_service::{Manner, Service},
    signing_in::browse,
    web::{Site, WebClient, http},
};

const KEY: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";

/// A gateway with a page, and the page's token.
struct Page {
    site: Site,
    token: String,
}

impl Page {
    fn of(setup: Setup) -> Self {
        let site = setup.serve_program();
        let token = site.page_token();
        Self { site, token }
    }

    /// Opens the page of a gateway whose shop is ready.
    fn of_shop() -> Self {
        let page = Self::of(shop());
        eventually("`shop` is ready", || (page.server("shop")["state"] == "ready").then_some(()));
        page
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let path = format!("/ui/api/{path}");
        let reply = http(&self.site.address, method, &path, &[("X-Nonet-Token", &self.token)], body);
        (reply.status, serde_json::from_str(&reply.body).unwrap_or_default())
    }

    fn get(&self, path: &str) -> Value {
        let (status, told) = self.ask("GET", path, "");
        assert_eq!(status, 200, "{path}: {told}");
        told
    }

    fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.ask("POST", path, &body.to_string())
    }

    fn server(&self, name: &str) -> Value {
        let state = self.get("state");
        let found = state["servers"].as_array().expect("a list").iter().find(|server| server["name"] == name);
        found.cloned().unwrap_or_default()
    }

    fn file(&self) -> String {
        fs::read_to_string(self.site.folder.path().join("servers.toml")).expect("it is there")
    }

    /// Returns the command line of a scripted server.
    fn scripted(&self, script: &Value) -> String {
        let file = self.site.folder.path().join("more.json");
        fs::write(&file, script.to_string()).expect("it can be written");
        format!("'{}' --script-file '{}'", fake_server().display(), file.display())
    }
}

fn message(told: &Value) -> &str {
    told["error"]["message"].as_str().unwrap_or_else(|| panic!("no fault: {told}"))
}

fn shop() -> Setup {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let tools = json!([
        { "name": "buy", "description": "Buys things.\n\nMany of them.", "input_schema": schema },
        { "name": "pay", "description": "Pays" },
    ]);
    Setup::new()
        .server("shop", json!({ "tools": tools }))
        .toml("# Who pays.\n[servers.shop.tools.pay]\npolicy = 'approve'\n\n[servers.off]\ncommand = 'no-such-program'\nenabled = false")
}

#[test]
fn what_the_page_does_takes_the_token_and_json() {
    let page = Page::of_shop();
    let before = page.file();
    for (method, path) in [
        ("POST", "servers"),
        ("POST", "servers/import"),
        ("GET", "registry?q=shop"),
        ("GET", "registry/server?name=com.example/shop"),
        ("POST", "registry/server"),
        ("GET", "servers/shop/text"),
        ("POST", "servers/shop/text"),
        ("POST", "servers/shop/remove"),
        ("GET", "servers/shop/tools"),
        ("GET", "tools/shop.buy"),
        ("POST", "tools/shop.buy/call"),
        ("POST", "tools/shop.buy/policy"),
        ("POST", "questions/1"),
        ("GET", "servers/shop/history"),
        ("POST", "servers/shop/secret"),
        ("POST", "servers/shop/token"),
        ("POST", "setup/plan"),
        ("POST", "setup"),
        ("GET", "gateways"),
        ("GET", "hosts"),
        ("GET", "hosts/cursor/install"),
        ("POST", "hosts/cursor/install"),
    ] {
        for headers in [&[][..], &[("X-Nonet-Token", "guess")]] {
            let reply = http(&page.site.address, method, &format!("/ui/api/{path}"), headers, "{}");
            assert_eq!(reply.status, 401, "{method} {path}");
        }
        if method == "POST" && path != "servers/shop/remove" {
            for body in ["", "{", "[1]", r#"{"unknown": 1}"#] {
                let (status, told) = page.ask(method, path, body);
                assert!(status == 400 && !message(&told).is_empty(), "{path} {body}: {status} {told}");
            }
            // The body is read to the end: an answer to an interrupted body may be lost.
            let (status, _) = page.ask(method, path, &" ".repeat((512 << 10) + 1));
            assert_eq!(status, 413, "{path}");
        }
    }
    for path in
        ["servers/nobody/text", "servers/nobody/tools", "servers/nobody/history", "tools/shop.nothing"]
    {
        assert_eq!(page.ask("GET", path, "").0, 404, "{path}");
    }
    for action in ["remove", "enable", "disable", "restart", "hold"] {
        assert_eq!(page.ask("POST", &format!("servers/nobody/{action}"), "").0, 404, "{action}");
    }
    assert_eq!(page.file(), before);
}

#[test]
fn a_server_is_added_once_it_has_started() {
    let page = Page::of_shop();
    let before = page.file();
    let said = format!("no account for {KEY}");
    let broken = page.scripted(&json!({ "stderr_lines": [said], "exit_at_start": 3 }));
    let wanted = json!({ "name": "bank", "command": broken, "env": [format!("API_TOKEN={KEY}")] });
    let (status, told) = page.post("servers", wanted);
    assert!(!told.to_string().contains(KEY), "{told}");
    let tried = &told["servers"][0]["tried"];
    assert_eq!((status, &told["written"], &tried["state"]), (200, &json!(false), &json!("down")), "{told}");
    assert!(tried["stderr"].to_string().contains("no account"), "{told}");
    assert_eq!(page.file(), before);

    let works = page.scripted(&json!({ "tools": [{ "name": "look", "on": { "env": true } }] }));
    let wanted = json!({
        "name": "bank", "command": works, "env": [format!("API_TOKEN={KEY}"), "PLACE=${HOME}/bank"],
        "tags": ["money"], "description": "Money",
    });
    let (status, told) = page.post("servers", wanted.clone());
    assert_eq!((status, &told["written"], &told["trouble"]), (200, &json!(true), &Value::Null), "{told}");
    assert_eq!(told["servers"][0]["tried"], json!({ "state": "ready", "tools": 1 }), "{told}");
    let now = page.file();
    assert!(now.contains("[servers.bank]\ndescription = \"Money\"") && !now.contains(KEY), "{now}");
    assert!(now.starts_with(before.trim_end()), "the rest stays byte for byte: {now}");
    eventually("`bank` is ready", || (page.server("bank")["state"] == "ready").then_some(()));
    let (_, called) = page.post("tools/bank.look/call", json!({}));
    let text = called["text"].as_str().expect("text");
    assert!(text.contains("\"API_TOKEN\": \"***\"") && !text.contains(KEY), "{called}");

    let (status, told) = page.post("servers", wanted);
    assert!(status == 400 && message(&told).contains("there is already a server `bank`"), "{told}");
    for (body, why) in [
        (json!({ "name": "x" }), "A server needs exactly one of"),
        (json!({ "name": "x", "command": "a 'b" }), "a quote is not closed"),
        (json!({ "name": "x", "url": "example.com" }), "The address must begin with"),
        (json!({ "name": "X y", "command": "a" }), "is not a valid server name"),
        (json!({ "name": "x", "command": "a", "env": [KEY] }), "`Variables` needs `NAME=value`"),
    ] {
        let (status, told) = page.post("servers", body);
        assert!(status == 400 && message(&told).contains(why), "{told}");
        assert!(!told.to_string().contains(KEY), "{told}");
    }
}

#[test]
fn servers_are_added_as_clients_write_them() {
    let page = Page::of_shop();
    let before = page.file();
    let script = page.site.folder.path().join("good.json");
    fs::write(&script, json!({ "tools": [{ "name": "look" }] }).to_string()).expect("it can be written");
    let good =
        json!({ "command": fake_server(), "args": ["--script-file", script], "env": { "API_TOKEN": KEY } });
    let text = json!({ "mcpServers": { "good": good, "bad": { "command": "no-such-program-of-nonet" } } })
        .to_string();
    let (status, told) = page.post("servers/import", json!({ "text": text }));
    assert_eq!((status, &told["written"]), (200, &json!(false)), "{told}");
    let failed = told["servers"].as_array().expect("a list").iter().map(|row| row["failed"].clone());
    assert_eq!(failed.collect::<Vec<_>>(), [json!(false), json!(true)], "{told}");
    assert_eq!(page.file(), before);

    let (_, told) = page.post("servers/import", json!({ "text": text, "without": ["bad"] }));
    assert_eq!(told["written"], true, "{told}");
    let now = page.file();
    assert!(now.contains("[servers.good]") && !now.contains("bad") && !now.contains(KEY), "{now}");
    eventually("`good` is ready", || (page.server("good")["state"] == "ready").then_some(()));
    for text in ["{}", "no JSON {", "{\"mcpServers\": []}"] {
        let (status, told) = page.post("servers/import", json!({ "text": text }));
        assert_eq!(status, 400, "{text}: {told}");
    }
}

#[test]
fn what_a_readme_offers_is_pasted() {
    let page = Page::of_shop();
    let folder = page.site.folder.path();
    let script = folder.join("good.json");
    fs::write(&script, json!({ "tools": [{ "name": "look" }] }).to_string()).expect("it can be written");
    let (program, script) = (fake_server().display().to_string(), script.display().to_string());
    let entry = json!({ "command": program, "args": ["--script-file", script] });
    for (name, text) in [
        ("braceless", format!("\"braceless\": {entry}")),
        ("typed", format!("claude mcp add typed -- {program} --script-file {script}")),
        (
            "fenced",
            format!(
                "Put this into your file:\n```json\n{}\n```\n",
                json!({ "mcpServers": { "fenced": entry } })
            ),
        ),
    ] {
        let before = page.file();
        let (status, told) = page.post("servers/import", json!({ "text": text }));
        assert_eq!((status, &told["written"]), (200, &json!(true)), "{text}: {told}");
        assert!(
            page.file().starts_with(before.trim_end()) && page.file().contains(&format!("[servers.{name}]")),
            "{told}"
        );
        eventually("it is ready", || (page.server(name)["state"] == "ready").then_some(()));
    }
}

#[test]
fn the_text_of_a_server_is_checked_before_it_is_written() {
    let page = Page::of_shop();
    let before = page.file();
    let shown = page.get("servers/off/text");
    let (text, hash) = (shown["text"].as_str().expect("text"), &shown["hash"]);
    assert_eq!(text, "[servers.off]\ncommand = 'no-such-program'\nenabled = false\n", "{shown}");
    let save =
        |text: &str, hash: &Value| page.post("servers/off/text", json!({ "text": text, "hash": hash }));
    for (wrong, line, why) in [
        ("[servers.off]\ncommand = 'x'\ntimeout = 'soon'\n", json!(3), "`timeout`: `soon` must be a time"),
        ("[servers.off]\ncommand = \n", json!(2), "this is not TOML"),
        ("[servers.other]\ncommand = 'x'\n", Value::Null, "has no `[servers.off]`"),
        ("[servers.off]\ncommand = 'x'\n[profiles.open]\n", Value::Null, "more than `[servers.off]`"),
    ] {
        let (status, told) = save(wrong, hash);
        let fault = &told["error"]["faults"][0];
        assert_eq!((status, &fault["line"]), (422, &line), "{wrong}: {told}");
        assert!(fault["message"].as_str().is_some_and(|text| text.contains(why)), "{wrong}: {told}");
    }
    assert_eq!(page.file(), before);
    let new = "# Later.\n[servers.off]\ncommand = 'no-such-program' # soon\nenabled = false\ntags = ['x']";
    let (status, told) = save(new, hash);
    assert_eq!((status, &told["written"], &told["trouble"]), (200, &json!(true), &Value::Null), "{told}");
    assert_eq!(page.file(), before.replace(text, &format!("{new}\n")));
    let (status, told) = save(new, hash);
    assert!(status == 409 && message(&told).contains("has changed since"), "{told}");

    // An edit does not remove protections.
    let shown = page.get("servers/shop/text");
    let weak = shown["text"].as_str().expect("text").replace("'approve'", "'allow'");
    let (status, told) = page.post("servers/shop/text", json!({ "text": weak, "hash": shown["hash"] }));
    assert!(status == 409 && message(&told).contains("would lose `servers.shop.tools.pay.policy`"), "{told}");
}

#[test]
fn a_secret_in_an_edited_text_does_not_go_into_the_file() {
    const LIVE: &str = "sk_live_0123456789abcdefABCD";
    let page = Page::of_shop();
    let shown = page.get("servers/off/text");
    let text = format!(
        "[servers.off] # mine\ncommand = 'no-such-program'\nargs = ['--token', '{KEY}', '-v']\nenabled = false\n\
         env = {{ STRIPE_KEY = '{LIVE}', LEVEL = 'info' }}\n"
    );
    let (status, told) = page.post("servers/off/text", json!({ "text": text, "hash": shown["hash"] }));
    assert_eq!((status, &told["written"], &told["trouble"]), (200, &json!(true), &Value::Null), "{told}");
    assert!(!told.to_string().contains(LIVE) && !told.to_string().contains(KEY), "{told}");
    let secrets = told["secrets"].as_array().expect("a list");
    assert!(secrets.len() == 2 && told["secrets"].to_string().contains("`STRIPE_KEY` goes into "), "{told}");
    let folder = page.site.folder.path();
    let expected = "[servers.off] # mine\ncommand = 'no-such-program'\nargs = ['--token', \"${OFF_TOKEN}\", '-v']\n\
                    enabled = false\nenv = { STRIPE_KEY = \"${STRIPE_KEY}\", LEVEL = 'info' }\n";
    assert!(page.file().contains(expected), "{}", page.file());
    let kept = fs::read_to_string(folder.join("secrets.env")).expect("it was made");
    assert!(
        kept.contains(&format!("STRIPE_KEY={LIVE}\n")) && kept.contains(&format!("OFF_TOKEN={KEY}\n")),
        "{kept}"
    );
    // An edit of something else keeps the references.
    let shown = page.get("servers/off/text");
    let text = shown["text"].as_str().expect("text").replace("'info'", "'warn'");
    let (status, told) = page.post("servers/off/text", json!({ "text": text, "hash": shown["hash"] }));
    assert_eq!((status, &told["secrets"]), (200, &json!([])), "{told}");
}

#[test]
fn a_value_that_a_server_misses_can_be_typed_and_does_not_stop_an_edit() {
    let page = Page::of(Setup::new().server("shop", json!({})).server_with(
        "keyed",
        json!({}),
        "env = { A = '${PAGE_KEY_A}', B = '${PAGE_KEY_B}' }",
    ));
    eventually("`keyed` is left out", || (page.server("keyed")["state"] == "needs_config").then_some(()));
    assert_eq!(page.server("keyed")["missing"], json!(["PAGE_KEY_A", "PAGE_KEY_B"]));
    assert_eq!(page.server("shop")["missing"], Value::Null);

    let edit = |from: &str, to: &str| {
        let shown = page.get("servers/keyed/text");
        let text = shown["text"].as_str().expect("text").replacen(from, to, 1);
        page.post("servers/keyed/text", json!({ "text": text, "hash": shown["hash"] }))
    };
    let (status, told) = edit("\nenv", "\ntags = ['x']\nenv");
    assert_eq!((status, &told["written"]), (200, &json!(true)), "{told}");
    let (status, told) = edit("PAGE_KEY_B", "PAGE_KEY_C");
    assert!(status == 422 && message(&told).contains("`PAGE_KEY_C` is not set"), "{told}");

    let keep = |server: &str, name: &str, value: &str| {
        page.post(&format!("servers/{server}/secret"), json!({ "name": name, "value": value }))
    };
    let before = page.file();
    for (server, name, value, status) in [
        ("nobody", "PAGE_KEY_A", "x", 404),
        ("shop", "PAGE_KEY_A", "x", 409),
        ("keyed", "PATH", "x", 409),
        ("keyed", "PAGE_KEY_A", " ", 400),
    ] {
        let (given, told) = keep(server, name, value);
        assert!(given == status && !message(&told).is_empty(), "{server} {name}: {given} {told}");
    }
    let secrets = page.site.folder.path().join("secrets.env");
    assert!(!secrets.exists());
    for (name, left) in [("PAGE_KEY_A", json!(["PAGE_KEY_B"])), ("PAGE_KEY_B", Value::Null)] {
        let (status, told) = keep("keyed", name, "typed v4lue\n");
        assert_eq!((status, &told["trouble"]), (200, &Value::Null), "{told}");
        assert!(!told.to_string().contains("v4lue"), "{told}");
        assert_eq!(page.server("keyed")["missing"], left);
    }
    eventually("`keyed` is ready", || (page.server("keyed")["state"] == "ready").then_some(()));
    assert_eq!(page.file(), before);
    let kept = fs::read_to_string(&secrets).expect("it was made");
    assert!(kept.contains("PAGE_KEY_A=typed v4lue\nPAGE_KEY_B=typed v4lue\n"), "{kept}");
    let (status, told) = keep("keyed", "PAGE_KEY_A", "another");
    assert!(status == 409 && fs::read_to_string(&secrets).expect("there") == kept, "{told}");
}

#[test]
fn a_server_that_offers_no_sign_in_is_given_a_token() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let script = json!({ "tools": [{ "name": "read" }], "require_bearer": "s3cret-of-web" });
    let (address, _server) = runtime.block_on(serve_script("127.0.0.1:0", script));
    let page = Page::of(Setup::new().server_of("web", &format!("url = 'http://{address}/mcp'")));
    let server = eventually("it is refused", || {
        Some(page.server("web")).filter(|server| server["state"] == "auth_required")
    });
    // In words, and with what to do: no header, and no sign-in that nobody offers.
    assert_eq!((&server["needs_token"], &server["login"]), (&json!(true), &Value::Null), "{server}");
    let error = server["last_error"].as_str().expect("an error");
    assert!(!error.contains("realm") && error.contains("`headers` of [servers.web]"), "{error}");
    let give = |token: &str| page.post("servers/web/token", json!({ "token": token }));
    let (status, told) = give(" ");
    assert!(status == 422 && message(&told).contains("there is no token"), "{told}");
    let (status, told) = give("s3cret-of-web");
    assert_eq!((status, &told["written"], &told["trouble"]), (200, &json!(true), &Value::Null), "{told}");
    assert!(page.file().contains("Authorization = \"Bearer ${WEB_TOKEN}\""), "{}", page.file());
    let kept = fs::read_to_string(page.site.folder.path().join("secrets.env")).expect("it was made");
    assert!(kept.contains("WEB_TOKEN=s3cret-of-web") && !told.to_string().contains("s3cret"), "{told}");
    eventually("it is ready", || (page.server("web")["state"] == "ready").then_some(()));
}

#[test]
fn a_server_of_the_registry_is_found_and_added_with_its_values() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let script = json!({ "tools": [{ "name": "read" }], "require_bearer": "s3cret-of-web" });
    let (address, _server) = runtime.block_on(serve_script("127.0.0.1:0", script));
    let registry = RegistryService::start("v0.1", None);
    let token = json!({ "name": "Authorization", "value": "Bearer {key}",
        "variables": { "key": { "description": "Key of the web", "isRequired": true, "isSecret": true } } });
    let remote =
        json!({ "type": "streamable-http", "url": format!("http://{address}/mcp"), "headers": [token] });
    let web =
        json!({ "name": "com.example/web", "description": "Reads", "version": "2.0.0", "remotes": [remote] });
    registry.publish(web, json!({ "status": "deprecated", "statusMessage": "use another" }));
    let bundle = json!({ "registryType": "mcpb", "identifier": format!("{}/files/a", registry.url()), "fileSha256": "0", "transport": { "type": "stdio" } });
    registry.publish(
        json!({ "name": "com.example/bundle", "description": "A bundle", "version": "1", "packages": [bundle] }),
        json!({}),
    );
    let page = Page::of(Setup::new().toml(&format!("[registry]\nurl = '{}'", registry.url())));

    let found = page.get("registry?q=reads");
    assert_eq!(
        (&found["registry"], &found["servers"][0]["name"], &found["servers"][0]["runs_as"]),
        (&json!(registry.url()), &json!("com.example/web"), &json!(["remote"])),
        "{found}"
    );
    assert_eq!(page.get("registry?q=nothing-like-it")["servers"], json!([]));

    let offer = page.get("registry/server?name=com.example/web");
    let value = json!({ "key": "key", "what": "Key of the web", "required": true, "secret": true });
    assert_eq!((&offer["name"], &offer["values"]), (&json!("web"), &json!([value])), "{offer}");
    assert_eq!(offer["notes"], json!(["It is deprecated: use another"]));
    for (name, why) in [
        ("web", "not the name of a server in a registry"),
        ("com.example/none", "no server `com.example/none`"),
        ("com.example/bundle", "nonet add com.example/bundle"),
    ] {
        let (status, told) = page.ask("GET", &format!("registry/server?name={name}"), "");
        assert!(status >= 400 && message(&told).contains(why), "{name}: {told}");
    }

    // A server that does not start is not written.
    let add = |values: Value| {
        page.post("registry/server", json!({ "registry": "com.example/web", "values": values }))
    };
    let before = page.file();
    let (status, told) = add(json!({ "key": "wrong" }));
    assert_eq!((status, &told["written"], page.file()), (200, &json!(false), before), "{told}");
    let (status, told) = add(json!({ "kex": "s3cret-of-web" }));
    assert!(status == 400 && message(&told).contains("`kex`"), "{told}");

    let (status, told) = add(json!({ "key": "s3cret-of-web" }));
    assert_eq!((status, &told["written"], &told["trouble"]), (200, &json!(true), &Value::Null), "{told}");
    let kept = fs::read_to_string(page.site.folder.path().join("secrets.env")).expect("it was made");
    assert!(kept.contains("=s3cret-of-web") && !page.file().contains("s3cret"), "{}", page.file());
    assert!(page.file().contains("registry = \"com.example/web@2.0.0\""), "{}", page.file());
    eventually("it is ready", || (page.server("web")["state"] == "ready").then_some(()));
}

#[test]
fn the_servers_of_clients_are_taken_over_and_given_back() {
    let page = Page::of(Setup::new());
    let folder = page.site.folder.path();
    let script = folder.join("good.json");
    fs::write(&script, json!({ "tools": [{ "name": "look" }] }).to_string()).expect("it can be written");
    let good = |key: &str| json!({ "command": fake_server(), "args": ["--script-file", script], "env": { "API_TOKEN": key } });
    let write = |file: &str, servers: Value| {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("it can be made");
        let text = format!("{:#}\n", json!({ "mcpServers": servers }));
        fs::write(&file, &text).expect("it can be written");
        (file, text)
    };
    let bad = json!({ "command": "no-such-program-of-nonet" });
    let (cursor, of_cursor) =
        write(".cursor/mcp.json", json!({ "good": good(KEY), "bad": bad, "mine": { "command": "x" } }));
    let (claude, of_claude) = write(".claude.json", json!({ "good": good(KEY) }));
    let before = page.file();
    let left = json!([{ "client": "cursor", "server": "mine" }]);

    let (status, plan) = page.post("setup/plan", json!({}));
    assert_eq!(status, 200, "{plan}");
    let clients = plan["clients"].as_array().expect("a list");
    assert_eq!((clients.len(), plan["servers"].as_array().map(Vec::len)), (2, Some(4)), "{plan}");
    assert!(plan["diff"].as_str().is_some_and(|diff| diff.contains("+[servers.good]")), "{plan}");
    assert!(
        plan["asks_by_risk"] == true && plan["shares"] == true && !plan.to_string().contains(KEY),
        "{plan}"
    );

    let (_, plan) = page.post("setup/plan", json!({ "left": left, "unasked": true }));
    assert!(plan["asks_by_risk"] == false && !plan.to_string().contains("servers.mine"), "{plan}");
    let wanted = json!({ "left": left, "unasked": true, "seen": plan["seen"] });
    let (status, told) = page.post("setup", json!({ "left": left, "unasked": true, "seen": "another" }));
    assert!(status == 409 && message(&told).contains("has changed"), "{told}");
    assert_eq!((page.file(), fs::read_to_string(&cursor).ok()), (before.clone(), Some(of_cursor.clone())));

    let (status, done) = page.post("setup", wanted);
    assert_eq!((status, &done["trouble"]), (200, &Value::Null), "{done}");
    let broken = done["broken"].as_object().expect("the broken ones");
    assert!(broken.len() == 1 && broken.contains_key("bad"), "{done}");
    eventually("`good` is ready", || (page.server("good")["state"] == "ready").then_some(()));
    assert!(page.file().contains("shared = true") && !page.file().contains("careful"), "{}", page.file());
    assert!(!page.file().contains(KEY) && folder.join("secrets.env").exists());
    let names = |file: &std::path::Path| -> Vec<String> {
        let text = fs::read_to_string(file).expect("it is there");
        let root: Value = serde_json::from_str(&text).expect("JSON");
        root["mcpServers"].as_object().expect("servers").keys().cloned().collect()
    };
    // What works moved; what does not, and what its user wants to keep there, did not.
    assert_eq!(names(&cursor), ["bad", "mine", "nonet"]);
    assert_eq!(names(&claude), ["nonet"]);
    assert_eq!(page.get("state")["can_undo_setup"], true);

    // A secret that cannot be removed is told; the rest is undone, and the undo can be repeated.
    let (secrets, aside) = (folder.join("secrets.env"), folder.join("aside"));
    fs::rename(&secrets, &aside).expect("it can be moved");
    fs::create_dir(&secrets).expect("it can be made");
    let (status, undone) = page.post("setup/undo", json!({}));
    assert!(status == 200 && undone["trouble"].to_string().contains("secrets are still stored"), "{undone}");
    assert_eq!((page.file(), &page.get("state")["can_undo_setup"]), (before.clone(), &json!(true)));
    fs::remove_dir(&secrets).expect("it is empty");
    fs::rename(&aside, &secrets).expect("it can be moved");
    let (status, undone) = page.post("setup/undo", json!({}));
    assert_eq!((status, &undone["trouble"]), (200, &json!([])), "{undone}");
    assert_eq!(page.file(), before);
    for (file, text) in [(&cursor, &of_cursor), (&claude, &of_claude)] {
        assert_eq!(&fs::read_to_string(file).expect("it is there"), text);
    }
    let secrets = fs::read_to_string(secrets).unwrap_or_default();
    assert!(!secrets.contains(KEY), "{secrets}");
    eventually("`good` is gone", || page.server("good").is_null().then_some(()));
    assert_eq!(page.post("setup/undo", json!({})).0, 409);
}

#[test]
fn a_server_is_switched_off_in_the_file_and_removed() {
    let page = Page::of_shop();
    let act = |server: &str, action: &str| page.ask("POST", &format!("servers/{server}/{action}"), "");
    assert_eq!(page.get("state")["switched_off"], json!(["off"]));
    assert_eq!(act("shop", "hold").0, 204);
    eventually("it is held", || (page.server("shop")["state"] == "held").then_some(()));
    assert!(!page.file().contains("[servers.shop]\nenabled"));
    assert_eq!(act("shop", "release").0, 204);
    // The only running server: the user confirms it.
    let (status, told) = act("shop", "disable");
    assert_eq!((status, &told["written"], &told["trouble"]), (200, &json!(true), &Value::Null), "{told}");
    assert_eq!(page.get("state")["switched_off"], json!(["off", "shop"]));
    assert!(page.file().contains("enabled = false"));
    let (_, told) = act("shop", "enable");
    assert_eq!(told["trouble"], Value::Null, "{told}");
    eventually("it is ready again", || (page.server("shop")["state"] == "ready").then_some(()));
    let (status, told) = act("off", "remove");
    assert_eq!((status, &told["trouble"]), (200, &Value::Null), "{told}");
    assert!(!page.file().contains("servers.off"), "{}", page.file());
    assert_eq!(page.get("state")["switched_off"], json!([]));

    #[cfg(unix)]
    {
        fs::remove_file(page.site.folder.path().join("servers.toml")).expect("it is there");
        let (status, told) = act("shop", "remove");
        assert!(status == 409 && message(&told).contains("no longer exists"), "{told}");
    }
}

#[test]
fn a_tool_is_looked_at_and_tried() {
    let page = Page::of_shop();
    let listed = page.get("servers/shop/tools?from=0");
    assert_eq!(
        (&listed["total"], &listed["tools"][0]["description"]),
        (&json!(2), &json!("Buys things.")),
        "{listed}"
    );
    assert_eq!(
        (&listed["tools"][1]["policy"], &listed["tools"][1]["rule"]),
        (&json!("approve"), &json!("servers.shop.tools.pay.policy"))
    );
    assert_eq!(page.get("servers/shop/tools?q=many+things")["tools"][0]["name"], "buy");
    let card = page.get("tools/shop.buy");
    assert_eq!(card["description"], "Buys things.\n\nMany of them.", "{card}");
    assert_eq!(card["input_schema"]["required"], json!(["n"]), "{card}");
    let (_, called) = page.post("tools/shop.buy/call", json!({ "params": { "n": 2 } }));
    assert_eq!((&called["failed"], &called["text"]), (&json!(false), &json!("{\n  \"n\": 2\n}")), "{called}");
    let (_, called) = page.post("tools/shop.buy/call", json!({ "params": { "n": "x" } }));
    assert_eq!((&called["failed"], &called["code"]), (&json!(true), &json!("invalid_params")), "{called}");
    assert_eq!(page.get("tools/shop.buy")["calls"], 1);

    // Calls that need approval by a policy wait on the page.
    for (decision, failed) in [("allow", false), ("deny", true)] {
        let called = thread::scope(|scope| {
            let call = scope.spawn(|| page.post("tools/shop.pay/call", json!({ "params": { "sum": 5 } })));
            let id = eventually("it waits", || {
                page.get("waiting")["approvals"][0]["id"].as_str().map(String::from)
            });
            let (status, _) = page.post(&format!("approvals/{id}"), json!({ "decision": decision }));
            assert_eq!(status, 204);
            call.join().expect("it ends").1
        });
        assert_eq!(called["failed"], failed, "{called}");
    }
}

#[test]
fn a_tool_gets_a_policy_that_is_kept_in_the_file() {
    let page = Page::of_shop();
    let before = page.file();
    let policy = || page.get("tools/shop.buy");
    let set = |policy: Value| {
        let (status, told) = page.post("tools/shop.buy/policy", json!({ "policy": policy }));
        assert_eq!((status, told.get("trouble")), (200, None), "{told}");
    };
    let found = policy();
    assert_eq!((&found["policy"], &found["own_policy"]), (&json!("allow"), &Value::Null), "{found}");
    set(json!("approve"));
    assert!(page.file().contains("[servers.shop.tools.buy]\npolicy = \"approve\"\n"), "{}", page.file());
    assert!(page.file().contains("# Who pays.\n[servers.shop.tools.pay]"), "{}", page.file());
    let found = policy();
    assert_eq!((&found["policy"], &found["own_policy"]), (&json!("approve"), &json!("approve")), "{found}");
    let mut client = WebClient::new(&page.site.address, "/mcp");
    let fault = client.answer("execute_tool", json!({ "name": "shop.buy", "params": { "n": 1 } }));
    assert_eq!(fault["error"]["code"], "needs_approval", "{fault}");
    // A rule that becomes less strict is what the user of the page wants.
    set(json!("allow"));
    let done = client.call("execute_tool", json!({ "name": "shop.buy", "params": { "n": 1 } }));
    assert_ne!(done["isError"], true, "{done}");
    set(Value::Null);
    assert_eq!(page.file(), before);
    let (status, told) = page.post("tools/gateway.status/policy", json!({ "policy": "deny" }));
    assert_eq!(status, 404, "{told}");
    let (status, told) = page.post("tools/shop.buy/policy", json!({ "policy": "maybe" }));
    assert!(status == 400 && message(&told).contains("approve"), "{told}");
}

#[test]
fn a_policy_that_the_page_loosens_holds_in_every_gateway_of_the_file() {
    let page = Page::of_shop();
    let mut other = Client::over(page.site.folder.clone(), &[], &[]);
    other.initialize("2025-06-18", json!({}));
    other.until_ready("shop");
    assert_eq!(other.fault_code("shop.pay").as_deref(), Some("needs_approval"));
    let (status, told) = page.post("tools/shop.pay/policy", json!({ "policy": "allow" }));
    assert_eq!((status, told.get("trouble")), (200, None), "{told}");
    // Without the user's word, a file that loses a protection would be refused.
    eventually("the other gateway takes it", || other.fault_code("shop.pay").is_none().then_some(()));
}

#[test]
fn a_server_has_a_history_of_its_states_and_its_stderr() {
    let said = format!("no account for {KEY}");
    let script = json!({ "stderr_lines": ["the bank opens", said], "exit_at_start": 3 });
    let page = Page::of(Setup::new().server("bank", script));
    let entries = eventually("it is down", || {
        let told = page.get("servers/bank/history")["entries"].clone();
        told.to_string().contains("down: ").then_some(told)
    });
    let kinds: Vec<&str> =
        entries.as_array().expect("a list").iter().filter_map(|entry| entry["kind"].as_str()).collect();
    assert!(kinds.contains(&"stderr") && kinds.contains(&"state"), "{entries}");
    assert!(
        entries.to_string().contains("the bank opens") && !entries.to_string().contains(KEY),
        "{entries}"
    );
    assert!(entries[0]["at_ms"].as_u64().is_some_and(|at| at > 1_700_000_000_000), "{entries}");
}

#[test]
fn a_server_that_asks_during_a_try_is_answered_on_the_page() {
    let form = json!({
        "type": "object", "required": ["size"],
        "properties": { "size": { "type": "string", "enum": ["small", "large"] }, "count": { "type": "integer", "minimum": 1 } },
    });
    let asks =
        json!({ "name": "order", "on": { "elicit": { "message": "Which size?", "requestedSchema": form } } });
    let page = Page::of(Setup::new().server("shop", json!({ "tools": [asks] })));
    eventually("`shop` is ready", || (page.server("shop")["state"] == "ready").then_some(()));
    let question = || eventually("it asks", || page.get("waiting")["questions"].get(0).cloned());
    let answer = |id: &Value, body: Value| page.post(&format!("questions/{id}"), body);
    thread::scope(|scope| {
        let call = scope.spawn(|| page.post("tools/shop.order/call", json!({})));
        let asked = question();
        assert_eq!((&asked["for"], &asked["form"]), (&json!("shop.order"), &form), "{asked}");
        assert!(
            asked["message"].as_str().is_some_and(|text| text.contains("`shop` asks: Which size?")),
            "{asked}"
        );
        let (status, told) =
            answer(&asked["id"], json!({ "action": "accept", "content": { "size": "huge" } }));
        assert!(status == 400 && message(&told).contains("size"), "{told}");
        let (status, _) =
            answer(&asked["id"], json!({ "action": "accept", "content": { "size": "large", "count": 2 } }));
        assert_eq!(status, 204);
        let (status, told) = call.join().expect("no panic");
        assert_eq!((status, &told["failed"]), (200, &json!(false)), "{told}");
        assert!(told["text"].as_str().is_some_and(|text| text.contains("large")), "{told}");
        assert_eq!(answer(&asked["id"], json!({ "action": "cancel" })).0, 404);
        assert_eq!(page.get("waiting")["questions"], json!([]));
    });
    thread::scope(|scope| {
        let call = scope.spawn(|| page.post("tools/shop.order/call", json!({})));
        assert_eq!(answer(&question()["id"], json!({ "action": "decline" })).0, 204);
        let (_, told) = call.join().expect("no panic");
        assert!(told["text"].as_str().is_some_and(|text| text.contains("decline")), "{told}");
    });
}

#[test]
fn what_a_client_asks_its_user_can_be_answered_on_the_page() {
    let page = Page::of_shop();
    let mut client = WebClient::new(&page.site.address, "/mcp");
    let ask = |client: &mut WebClient, arguments: Value| client.answer("ask_user", arguments);
    let waiting = || page.get("waiting")["client_questions"].clone();
    let answer =
        |token: &str, said: Value| page.post(&format!("client-questions/{token}"), json!({ "answer": said }));

    let asked = ask(&mut client, json!({ "question": "Which colour?", "choices": ["red", "blue"] }));
    let token = asked["token"].as_str().expect("a token").to_string();
    let shown = &waiting()[0];
    assert_eq!((&shown["token"], &shown["choices"]), (&json!(token), &json!(["red", "blue"])), "{shown}");
    let (status, told) = answer(&token, json!("green"));
    assert!(status == 400 && message(&told).contains("does not name one of the choices"), "{told}");
    assert_eq!(answer(&token, json!("blue")).0, 204);
    assert_eq!(waiting(), json!([]));
    assert_eq!(answer(&token, json!("red")).0, 404, "the first answer counts");
    // The client hears of it with its next answer, and when it asks again, whatever the chat said meanwhile.
    let next = client.call("list_categories", json!({}));
    assert!(next.to_string().contains("question_answered"), "{next}");
    let told = ask(&mut client, json!({ "token": token, "answer": "red" }));
    assert_eq!((&told["status"], &told["answer"]), (&json!("answered"), &json!("blue")), "{told}");
    let gone = ask(&mut client, json!({ "token": token, "answer": "red" }));
    assert_eq!(gone["error"]["code"], "not_found", "{gone}");

    // A call that waits for approval in the chat may be made once, and an answer that nobody fetched answers
    // no other call.
    let pay = json!({ "name": "shop.pay" });
    let fault = client.answer("execute_tool", pay.clone());
    assert_eq!(fault["error"]["code"], "needs_approval", "{fault}");
    let shown = waiting()[0].clone();
    assert_eq!((&shown["kind"], &shown["tool"]), (&json!("call"), &json!("shop.pay")), "{shown}");
    assert_eq!(answer(shown["token"].as_str().expect("a token"), json!("allow")).0, 204);
    let paid = client.call("execute_tool", pay.clone());
    assert_ne!(paid["isError"], true, "{paid}");
    let fault = client.answer("execute_tool", pay);
    assert_eq!(fault["error"]["code"], "needs_approval", "{fault}");
    let again = waiting()[0].clone();
    assert_ne!(again["token"], shown["token"], "{again}");
    let token = again["token"].as_str().expect("a token");
    let denied = ask(&mut client, json!({ "token": token, "answer": "deny" }));
    assert_eq!(denied["status"], "denied", "{denied}");

    // A client that fetches the answer by its token gets the result of the approved call, which is made once.
    let pay = json!({ "name": "shop.pay", "params": { "sum": 7 } });
    let fault = client.answer("execute_tool", pay.clone());
    assert_eq!(fault["error"]["code"], "needs_approval", "{fault}");
    let token = waiting()[0]["token"].clone();
    assert_eq!(answer(token.as_str().expect("a token"), json!("allow")).0, 204);
    let paid = client.call("ask_user", json!({ "token": token }));
    assert_ne!(paid["isError"], true, "{paid}");
    let gone = ask(&mut client, json!({ "token": token }));
    assert_eq!(gone["error"]["code"], "not_found", "{gone}");
    let fault = client.answer("execute_tool", pay);
    assert_eq!(fault["error"]["code"], "needs_approval", "{fault}");
}

#[test]
fn nonet_is_put_into_the_file_of_a_client_and_taken_out() {
    let page = Page::of_shop();
    let folder = page.site.folder.path().join(".cursor");
    fs::create_dir(&folder).expect("it can be made");
    let before = "{\n  // Mine.\n  \"apiKey\": \"sk-hunter2-near-it\",\n  \"mcpServers\": {}\n}\n";
    fs::write(folder.join("mcp.json"), before).expect("it can be written");
    let host = |name: &str| {
        let hosts = page.get("hosts");
        let found = hosts["hosts"].as_array().expect("a list").iter().find(|host| host["name"] == name);
        found.cloned().expect("a known client")
    };
    let cursor = host("cursor");
    assert_eq!((&cursor["found"], &cursor["nonet"]), (&json!(true), &json!("absent")), "{cursor}");
    assert!(cursor["entry"].as_str().is_some_and(|entry| entry.contains("\"mcpServers\"")), "{cursor}");
    assert!(host("codex")["entry"].as_str().is_some_and(|entry| entry.starts_with("[mcp_servers.nonet]")));
    let shown = page.get("hosts/cursor/install");
    assert!(shown["diff"].as_str().is_some_and(|diff| diff.contains("+    \"nonet\"")), "{shown}");
    assert!(!shown.to_string().contains("hunter2"), "a line around the change is masked too: {shown}");
    let file = || fs::read_to_string(folder.join("mcp.json")).expect("it is there");
    assert_eq!(file(), before, "nothing is written before it is applied");
    let (status, told) = page.post("hosts/cursor/install", json!({ "digest": "another" }));
    assert!(status == 409 && message(&told).contains("review it again"), "{told}");
    let (status, told) = page.post("hosts/cursor/install", json!({ "digest": shown["digest"] }));
    assert!(status == 200 && told["backup"].is_string(), "{told}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let backup = std::path::Path::new(told["backup"].as_str().expect("a path"));
        assert_eq!(fs::metadata(backup).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(backup.starts_with(page.site.folder.path().join(".local/state/nonet/backups")), "{told}");
    }
    assert_eq!(host("cursor")["nonet"], "here");
    let shown = page.get("hosts/cursor/uninstall");
    assert_eq!(page.post("hosts/cursor/uninstall", json!({ "digest": shown["digest"] })).0, 200);
    assert_eq!(file(), before, "byte for byte");
    assert_eq!(page.ask("GET", "hosts/nobody/install", "").0, 400);
    assert_eq!(page.ask("GET", "hosts/cursor/explode", "").0, 404);
}

#[test]
fn a_sign_in_begins_on_the_page() {
    nonet_wire::web::crypto();
    let service = Service::start(Manner::default());
    let page = Page::of(
        Setup::new().server_of("web", &format!("url = '{}'", service.url())).server("shop", json!({})),
    );
    eventually("it wants a sign-in", || (page.server("web")["state"] == "auth_required").then_some(()));
    let (status, told) = page.ask("POST", "servers/web/login", "");
    assert_eq!(status, 200, "{told}");
    let (status, shown) = browse(told["address"].as_str().expect("an address"));
    assert_eq!((status, shown.contains("Signed in")), (200, true), "{shown}");
    eventually("it is ready", || (page.server("web")["state"] == "ready").then_some(()));
    let (status, told) = page.ask("POST", "servers/shop/login", "");
    assert!(status == 409 && message(&told).contains("takes its credentials from `env`"), "{told}");
}
