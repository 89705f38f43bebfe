//! People in browsers: single sign-on at the page, and accounts of their own at servers.

use std::{collections::BTreeMap, fs, sync::Arc};

use nonet_testing::{TokenIssuer, TokenKey};
use serde_json::{Value, json};

use crate::{
    client::command,
    setup::{Setup, eventually},
    sign_in_service::{Manner, Service},
    web::{Reply, Site, WebClient, http},
};

/// The address at which clients and browsers would reach the gateway.
const PUBLIC: &str = "https://nonet.test";
const HOST: &str = "nonet.test";

struct Firm {
    key: Arc<TokenKey>,
    issuer: TokenIssuer,
}

impl Firm {
    fn new() -> Self {
        let key = Arc::new(TokenKey::new("one"));
        let issuer = TokenIssuer::start(&[&key]);
        let firm = Self { key, issuer };
        firm.is_visited_by("ann", json!({}));
        firm
    }

    /// Lets somebody be signed in at the issuer, with more claims in their ID token.
    fn is_visited_by(&self, subject: &str, more: Value) {
        let mut claims = json!({ "sub": subject, "name": subject.to_uppercase() });
        for (name, value) in more.as_object().expect("claims") {
            claims[name] = value.clone();
        }
        self.issuer.lets_in(&self.key, claims);
    }

    fn serve(&self, setup: Setup, page: &str, more: &str) -> Site {
        let auth = format!(
            "[auth]\nissuer = '{}'\n[auth.page]\nclient_id = 'nonet'\n{page}\n{more}",
            self.issuer.address
        );
        setup.gateway(&format!("public_url = '{PUBLIC}'")).toml(&auth).serve_program()
    }

    /// Returns an access token of a person for `/mcp`.
    fn token(&self, subject: &str, more: Value) -> String {
        let mut claims = json!({
            "iss": self.issuer.address, "sub": subject, "aud": format!("{PUBLIC}/mcp"), "exp": 4_102_444_800_u64,
        });
        for (name, value) in more.as_object().expect("claims") {
            claims[name] = value.clone();
        }
        self.key.token(&self.key.header(), &claims)
    }
}

/// A browser: it keeps cookies of the gateway, and follows redirects step by step.
#[derive(Clone)]
struct Browser {
    address: String,
    cookies: BTreeMap<String, String>,
}

impl Browser {
    fn new(site: &Site) -> Self {
        Self { address: site.address.clone(), cookies: BTreeMap::new() }
    }

    fn send(&mut self, method: &str, path: &str, more: &[(&str, &str)], body: &str) -> Reply {
        let cookie: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cookie = cookie.join("; ");
        let mut headers = vec![("host", HOST), ("cookie", cookie.as_str())];
        headers.extend_from_slice(more);
        let reply = http(&self.address, method, path, &headers, body);
        if let Some(set) = reply.headers.get("set-cookie") {
            let (name, value) = set.split_once(';').expect("attributes").0.split_once('=').expect("a pair");
            assert!(set.contains("HttpOnly; Secure; SameSite=Lax") && name.starts_with("__Host-"), "{set}");
            self.cookies.insert(name.into(), value.into());
        }
        reply
    }

    fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], "")
    }

    /// Sends a form of a page.
    fn post(&mut self, path: &str, form: &str) -> Reply {
        self.send(
            "POST",
            path,
            &[("content-type", "application/x-www-form-urlencoded"), ("origin", PUBLIC)],
            form,
        )
    }

    /// Makes an order of the live page.
    fn order(&mut self, path: &str, csrf: &str) -> Reply {
        self.send("POST", path, &[("x-nonet-csrf", csrf), ("origin", PUBLIC)], "{}")
    }

    /// Follows redirects through other sites back to the gateway, and returns where they lead there.
    fn back(&self, reply: &Reply) -> String {
        let mut to = location(reply);
        while !to.starts_with(PUBLIC) {
            let rest = to.strip_prefix("http://").unwrap_or_else(|| panic!("{to}"));
            let (host, path) = rest.split_once('/').expect("a path");
            to = location(&http(host, "GET", &format!("/{path}"), &[], ""));
        }
        to.split_off(PUBLIC.len())
    }

    /// Signs in at the issuer. Returns the page that the browser gets then.
    fn sign_in(&mut self, to: &str) -> Reply {
        let begun = self.get(&format!("/ui/login?to={to}"));
        assert_eq!(begun.status, 303, "{begun:?}");
        let back = self.back(&begun);
        self.get(&back)
    }

    /// Returns what a browser sends with each order.
    fn csrf(&mut self) -> String {
        let user = self.get("/ui/api/user");
        assert_eq!(user.status, 200, "{user:?}");
        value(&user)["csrf"].as_str().expect("it has one").into()
    }

    /// Signs in to a server with an account of its own. Returns the last page.
    fn connect(&mut self, server: &str) -> Reply {
        let page = self.get(&format!("/accounts/{server}"));
        assert_eq!(page.status, 200, "{page:?}");
        let csrf = hidden_csrf(&page);
        let begun = self.post(&format!("/accounts/{server}/sign-in"), &format!("csrf={csrf}&scope="));
        assert_eq!(begun.status, 303, "{begun:?}");
        let back = self.back(&begun);
        let done = self.get(&back);
        assert_eq!(done.status, 303, "{done:?}");
        self.get(&location(&done))
    }
}

fn location(reply: &Reply) -> String {
    reply.headers.get("location").unwrap_or_else(|| panic!("no redirect: {reply:?}")).clone()
}

fn value(reply: &Reply) -> Value {
    serde_json::from_str(&reply.body).unwrap_or_else(|_| panic!("no JSON: {reply:?}"))
}

/// Returns the hidden value of the forms of a page.
fn hidden_csrf(page: &Reply) -> String {
    let (_, rest) =
        page.body.split_once("name=\"csrf\" value=\"").unwrap_or_else(|| panic!("no form: {page:?}"));
    rest.split_once('"').expect("a value").0.into()
}

const ROLES: &str = "look = { claims = { groups = 'staff' }, scopes = ['nonet:look'] }\n\
                     operate = { claims = { groups = 'ops' } }\nadminister = { claims = { groups = 'admins' } }";

fn shop() -> Setup {
    Setup::new().server("shop", json!({ "tools": [{ "name": "buy" }, { "name": "look" }] }))
}

#[test]
fn people_see_and_do_on_the_page_what_their_role_allows() {
    let firm = Firm::new();
    let site = firm.serve(shop(), ROLES, "[audit]\n");
    let as_one_of = |group: &str| {
        firm.is_visited_by("ann", json!({ "groups": [group] }));
        let mut browser = Browser::new(&site);
        let refused = browser.get("/ui/api/state");
        assert_eq!((refused.status, &value(&refused)["error"]["sign_in"]), (401, &json!("/ui/login")));
        assert_eq!(browser.get("/ui").status, 200);
        let page = browser.sign_in("/ui");
        assert!(page.status == 200 && page.body.contains("url=https://nonet.test/ui"), "{page:?}");
        browser
    };
    let requests = [
        ("GET", "/ui/api/state", 200),
        ("GET", "/ui/api/work", 200),
        ("POST", "/ui/api/servers/shop/restart", 204),
        ("GET", "/ui/api/servers/shop/text", 200),
        ("GET", "/ui/api/hosts", 200),
        ("POST", "/ui/api/servers/shop/disable", 200),
    ];
    for (group, role, allowed) in [("staff", "look", 2), ("ops", "operate", 3), ("admins", "administer", 6)] {
        let mut browser = as_one_of(group);
        let csrf = browser.csrf();
        assert_eq!(value(&browser.get("/ui/api/user"))["role"], role);
        for (at, (method, path, status)) in requests.iter().enumerate() {
            let reply = match *method {
                "GET" => browser.get(path),
                _ => browser.order(path, &csrf),
            };
            let expected = if at < allowed { *status } else { 403 };
            assert_eq!(reply.status, expected, "{role}: {path}: {reply:?}");
        }
    }
    let mut stranger = as_one_of("guests");
    let refused = stranger.get("/ui/api/state");
    assert!(refused.status == 403 && refused.body.contains("no role"), "{refused:?}");

    // A program with a token: by its scopes, never by its claims.
    let ask = |token: &str, method: &str, path: &str| {
        let authorization = format!("Bearer {token}");
        http(&site.address, method, path, &[("host", HOST), ("authorization", &authorization)], "{}")
    };
    let program = firm.token("robot", json!({ "scope": "nonet:look" }));
    assert_eq!(ask(&program, "GET", "/ui/api/state").status, 200);
    assert_eq!(ask(&program, "POST", "/ui/api/servers/shop/restart").status, 403);
    let other = firm.token("robot", json!({ "groups": ["admins"] }));
    let refused = ask(&other, "GET", "/ui/api/state");
    assert_eq!(refused.status, 403);
    assert!(refused.headers["www-authenticate"].contains("scope=\"nonet:look\""), "{refused:?}");
    assert_eq!(ask("nonsense", "GET", "/ui/api/state").status, 401);

    let logs = site.folder.path().join(".local/state/nonet/audit");
    eventually("the log says who restarted the server", || {
        let files = fs::read_dir(&logs).ok()?.flatten();
        let text: String = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut restarts = lines.filter(|line| line["about"]["action"] == "restart");
        restarts.any(|line| line["about"]["person"]["subject"] == "ann").then_some(())
    });
}

#[test]
fn orders_come_from_the_page_itself() {
    let firm = Firm::new();
    firm.is_visited_by("ann", json!({ "groups": "admins" }));
    let site = firm.serve(shop(), ROLES, "");
    let mut browser = Browser::new(&site);
    browser.sign_in("/ui");
    let csrf = browser.csrf();
    let restart = "/ui/api/servers/shop/restart";
    let mut order = |headers: &[(&str, &str)]| browser.send("POST", restart, headers, "{}").status;
    assert_eq!(order(&[("origin", PUBLIC)]), 403, "without the value");
    assert_eq!(order(&[("x-nonet-csrf", "guessed"), ("origin", PUBLIC)]), 403);
    assert_eq!(order(&[("x-nonet-csrf", &csrf), ("origin", "https://evil.example")]), 403);
    assert_eq!(order(&[("x-nonet-csrf", &csrf), ("origin", "null")]), 403);
    assert_eq!(order(&[("x-nonet-csrf", &csrf), ("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(order(&[("x-nonet-csrf", &csrf), ("origin", PUBLIC)]), 204);
    // The value of one session is none of another.
    let mut other = Browser::new(&site);
    other.sign_in("/ui");
    assert_eq!(other.order(restart, &csrf).status, 403);
    // Another site cannot sign a browser out.
    assert_eq!(browser.post("/ui/logout", "csrf=guessed").status, 403);
    assert_eq!(browser.get("/ui/api/state").status, 200);
    assert_eq!(browser.post("/ui/logout", &format!("csrf={csrf}")).status, 303);
    assert_eq!(browser.get("/ui/api/state").status, 401);
    // A host that is not the gateway's gets nothing (DNS rebinding).
    assert_eq!(http(&site.address, "GET", "/ui", &[("host", "evil.example")], "").status, 403);
}

#[test]
fn a_sign_in_with_a_browser_cannot_be_forged() {
    let firm = Firm::new();
    firm.is_visited_by("ann", json!({ "groups": "staff" }));
    let site = firm.serve(shop(), ROLES, "");
    // Never to another site.
    for to in ["https://evil.example", "//evil.example", "/%5Cevil.example", "/ui/../../evil"] {
        let page = Browser::new(&site).sign_in(to);
        assert!(page.body.contains("url=https://nonet.test/ui\""), "{to}: {page:?}");
    }
    let is_refused = |what: &str, browser: &mut Browser, back: &str| {
        let page = browser.get(back);
        assert!((400..500).contains(&page.status), "{what}: {page:?}");
        assert_eq!(browser.get("/ui/api/state").status, 401, "{what}");
    };
    let begin = || {
        let mut browser = Browser::new(&site);
        let begun = browser.get("/ui/login");
        let back = browser.back(&begun);
        (browser, back)
    };
    let (mut browser, back) = begin();
    is_refused("another state", &mut browser, &back.replace("state=", "state=x"));
    let (mut browser, back) = begin();
    let (before, _) = back.split_once("&iss=").expect("it says who answers");
    is_refused("nobody says who answers", &mut browser, before);
    let (mut browser, back) = begin();
    is_refused("another issuer answers", &mut browser, &back.replace("&iss=http", "&iss=https"));
    let (mut browser, back) = begin();
    is_refused("the issuer refuses", &mut browser, &back.replace("code=", "error=access_denied&x="));
    // What an attacker began, a victim's browser does not finish; without a cookie there is nothing to finish.
    let (_, back) = begin();
    is_refused("another browser's", &mut Browser::new(&site), &back);
    let (_, back) = begin();
    let (mut victim, _) = begin();
    is_refused("another sign-in's", &mut victim, &back);
    let (mut browser, back) = begin();
    assert_eq!(browser.get(&back).status, 200);
    let mut again = Browser { cookies: begin().0.cookies, ..browser.clone() };
    is_refused("a code that was used", &mut again, &back);

    let foreign = Arc::new(TokenKey::new("one"));
    let claims = |more: Value| {
        let mut claims = json!({ "sub": "ann", "groups": "staff" });
        for (name, value) in more.as_object().expect("claims") {
            claims[name] = value.clone();
        }
        claims
    };
    for (what, key, more) in [
        ("another nonce", &firm.key, json!({ "nonce": "x" })),
        ("another client's", &firm.key, json!({ "aud": "other" })),
        ("of several, for another", &firm.key, json!({ "aud": ["nonet", "other"], "azp": "other" })),
        ("another issuer's", &firm.key, json!({ "iss": "https://elsewhere.example" })),
        ("expired", &firm.key, json!({ "exp": 1 })),
        ("nobody's", &firm.key, json!({ "sub": "" })),
        ("signed by somebody else", &foreign, json!({})),
    ] {
        firm.issuer.lets_in(key, claims(more));
        let (mut browser, back) = begin();
        is_refused(what, &mut browser, &back);
    }
    // A blocked person is out at once, although their browser has signed in.
    firm.is_visited_by("ann", json!({ "groups": "staff" }));
    let (mut browser, back) = begin();
    browser.get(&back);
    assert_eq!(browser.get("/ui/api/state").status, 200);
    let file = site.folder.path().join("servers.toml");
    let text = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, text.replace("[auth]\n", "[auth]\nblocked = ['ann']\n")).expect("written");
    eventually("the blocked person is out", || (browser.get("/ui/api/state").status == 401).then_some(()));
    let (mut browser, back) = begin();
    is_refused("blocked", &mut browser, &back);
}

fn drive(script: Value) -> Manner {
    let tool = |name: &str| json!({ "name": name });
    let of_bob = json!({ "tools": [tool("whoami"), tool("for_bob")] });
    Manner { script, people: BTreeMap::from([("bob".to_string(), of_bob)]), ..Manner::default() }
}

fn usual() -> Manner {
    drive(json!({ "tools": [{ "name": "whoami" }, { "name": "for_most" }] }))
}

/// Signs somebody in at the gateway, and at the service as the same person.
fn connect(firm: &Firm, service: &Service, site: &Site, subject: &str) -> Browser {
    firm.is_visited_by(subject, json!({}));
    service.is_visited_by(subject);
    let mut browser = Browser::new(site);
    browser.sign_in("/accounts/drive");
    let page = browser.connect("drive");
    assert!(page.body.contains("Done: go back"), "{page:?}");
    browser
}

fn with_drive(service: &Service, credentials: &str) -> Setup {
    Setup::new().server_of("drive", &format!("url = '{}'\ncredentials = {credentials}", service.url()))
}

/// Returns who the service says the caller is, or the code of the fault.
fn whoami(client: &mut WebClient) -> String {
    let result = client.call("execute_tool", json!({ "name": "drive.whoami" }));
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    match serde_json::from_str::<Value>(text) {
        Ok(fault) if fault["error"]["code"].is_string() => {
            fault["error"]["code"].as_str().unwrap_or_default().into()
        }
        _ => text.into(),
    }
}

fn tools_of(client: &mut WebClient) -> Vec<String> {
    let found = client.answer("browse_category", json!({ "category": "drive" }));
    let tools = found["tools"].as_array().into_iter().flatten();
    tools.filter_map(|tool| tool["name"].as_str()).map(String::from).collect()
}

#[test]
fn each_person_has_their_own_account_at_a_server() {
    let (firm, service) = (Firm::new(), Service::start(usual()));
    let site = firm.serve(with_drive(&service, "'user'"), "", "[audit]\n");
    let client =
        |subject: &str| WebClient::with_token(&site.address, "/mcp", &firm.token(subject, json!({})));
    // Nobody has signed in: a search says where.
    let mut ann = client("ann");
    let found = ann.answer("search_tools", json!({ "query": "drive: who am I" })).to_string();
    assert!(found.contains("https://nonet.test/accounts/drive"), "{found}");
    connect(&firm, &service, &site, "ann");
    eventually("ann has her account", || (whoami(&mut ann) == "ann").then_some(()));
    // Another person sees what there is, and gets the link.
    let mut bob = client("bob");
    let fault = bob.answer("execute_tool", json!({ "name": "drive.whoami" }));
    assert_eq!(fault["error"]["code"], "auth_required", "{fault}");
    let message = fault["error"]["message"].as_str().expect("a message");
    assert!(message.contains("https://nonet.test/accounts/drive"), "{message}");
    let browser = connect(&firm, &service, &site, "bob");
    eventually("bob has his account", || (whoami(&mut bob) == "bob").then_some(()));
    assert_eq!(whoami(&mut ann), "ann");
    // Each sees their own tools.
    assert_eq!(tools_of(&mut ann), ["drive.for_most", "drive.whoami"]);
    eventually("bob sees his tools", || {
        (tools_of(&mut bob) == ["drive.for_bob", "drive.whoami"]).then_some(())
    });
    let fault = ann.answer("execute_tool", json!({ "name": "drive.for_bob" }));
    assert_eq!(fault["error"]["code"], "unknown_tool", "{fault}");
    // One client was registered for all.
    assert_eq!(service.count("register"), 1);
    // What the gateway keeps says nothing about tokens.
    let state = site.folder.path().join(".local/state/nonet");
    for file in fs::read_dir(&state).expect("readable").flatten().filter(|file| file.path().is_file()) {
        let bytes = fs::read(file.path()).expect("readable");
        service.assert_hidden(&file.file_name().to_string_lossy(), &String::from_utf8_lossy(&bytes));
    }
    // Tokens are renewed for each of them, without a browser.
    service.revoke(false);
    assert_eq!((whoami(&mut ann), whoami(&mut bob)), ("ann".into(), "bob".into()));
    // A restart signs nobody out.
    let setup = site.folder.clone();
    drop(site);
    let site = again(&setup);
    let mut ann = WebClient::with_token(&site.address, "/mcp", &firm.token("ann", json!({})));
    let mut bob = WebClient::with_token(&site.address, "/mcp", &firm.token("bob", json!({})));
    eventually("both go on", || (whoami(&mut ann) == "ann" && whoami(&mut bob) == "bob").then_some(()));
    // The browser's session goes on as well. Bob signs out: only his account ends.
    let mut browser = Browser { address: site.address.clone(), ..browser };
    let page = browser.get("/accounts");
    assert!(page.body.contains("(signed in)"), "{page:?}");
    let csrf = hidden_csrf(&page);
    assert_eq!(browser.post("/accounts/drive/sign-out", "csrf=guessed").status, 403);
    assert_eq!(browser.post("/accounts/drive/sign-out", &format!("csrf={csrf}")).status, 303);
    eventually("bob's account has ended", || (whoami(&mut bob) == "auth_required").then_some(()));
    assert_eq!(whoami(&mut ann), "ann");
}

/// Serves again from a folder.
fn again(folder: &Arc<tempfile::TempDir>) -> Site {
    let errors = folder.path().join("stderr-again");
    let child = command(folder.path())
        .args(["serve", "--http", "127.0.0.1:0"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(fs::File::create(&errors).expect("a file"))
        .spawn()
        .expect("nonet starts");
    let address = eventually("nonet serves again", || {
        let text = fs::read_to_string(&errors).ok()?;
        let (_, rest) = text.split_once("serving MCP at http://")?;
        Some(rest.split_once("/mcp")?.0.to_string())
    });
    Site { folder: folder.clone(), address, host: crate::client::Host::Program(child), page: None }
}

#[test]
fn a_sign_in_to_a_server_belongs_to_the_browser_and_the_person_that_began_it() {
    let (firm, service) = (Firm::new(), Service::start(usual()));
    let site = firm.serve(with_drive(&service, "'user'"), "", "");
    let signed_in = |subject: &str| {
        firm.is_visited_by(subject, json!({}));
        let mut browser = Browser::new(&site);
        browser.sign_in("/accounts");
        browser
    };
    let (mut ann, mut eve) = (signed_in("ann"), signed_in("eve"));
    let begin = |browser: &mut Browser| {
        let csrf = hidden_csrf(&browser.get("/accounts/drive"));
        let begun = browser.post("/accounts/drive/sign-in", &format!("csrf={csrf}"));
        browser.back(&begun)
    };
    let is_refused = |browser: &mut Browser, back: &str| {
        let page = browser.get(back);
        assert!((400..=502).contains(&page.status), "{page:?}");
        let page = browser.get("/accounts");
        assert!(page.body.contains("(not signed in)"), "{page:?}");
    };
    // Eve's account is not put into Ann's hands, nor the other way round.
    let of_eve = begin(&mut eve);
    is_refused(&mut ann, &of_eve);
    begin(&mut ann);
    is_refused(&mut ann, &of_eve);
    // Not even with Eve's cookie of the sign-in.
    let flow = eve.cookies["__Host-nonet-account"].clone();
    ann.cookies.insert("__Host-nonet-account".into(), flow);
    is_refused(&mut ann, &of_eve);
    let of_ann = begin(&mut ann);
    is_refused(&mut ann, &of_ann.replace("state=", "state=x"));
    let of_ann = begin(&mut ann);
    is_refused(&mut ann, &of_ann.replace("&iss=http", "&iss=https"));
    // A form of another site.
    let csrf = hidden_csrf(&ann.get("/accounts/drive"));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let foreign = [form, ("origin", "https://evil.example")];
    let reply = ann.send("POST", "/accounts/drive/sign-in", &foreign, &format!("csrf={csrf}"));
    assert_eq!(reply.status, 403, "{reply:?}");
    // Whoever has not signed in here does so first, and comes back.
    let mut nobody = Browser::new(&site);
    let sent = nobody.get("/accounts/drive?scope=more");
    assert_eq!(location(&sent), "/ui/login?to=%2Faccounts%2Fdrive%3Fscope%3Dmore");
    let page = nobody.sign_in("%2Faccounts%2Fdrive%3Fscope%3Dmore");
    assert!(page.body.contains("url=https://nonet.test/accounts/drive?scope=more"), "{page:?}");
    assert_eq!(nobody.get("/accounts/elsewhere").status, 404);
    let document = value(&nobody.get("/oauth/client.json"));
    assert_eq!(document["client_id"], "https://nonet.test/oauth/client.json");
    assert_eq!(document["redirect_uris"], json!(["https://nonet.test/accounts/callback"]));
}

#[test]
fn a_client_that_shows_links_asks_for_the_sign_in() {
    let (firm, service) = (Firm::new(), Service::start(usual()));
    let site = firm.serve(with_drive(&service, "'user'"), "", "");
    connect(&firm, &service, &site, "ann");
    let mut ann = WebClient::with_token(&site.address, "/mcp", &firm.token("ann", json!({})));
    eventually("the tools are known", || (whoami(&mut ann) == "ann").then_some(()));
    let token = firm.token("bob", json!({}));
    let call = |more: Value| {
        let mut params = json!({ "name": "execute_tool", "arguments": { "name": "drive.whoami" } });
        for (name, value) in more.as_object().expect("params") {
            params[name] = value.clone();
        }
        let can = json!({ "elicitation": { "form": {}, "url": {} } });
        crate::web::modern_with(&site.address, &token, "tools/call", params, can).result()
    };
    let asked = call(json!({}));
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let (key, request) =
        asked["inputRequests"].as_object().and_then(|all| all.iter().next()).expect("a question");
    assert_eq!(request["params"]["mode"], "url", "{request}");
    assert_eq!(request["params"]["url"], "https://nonet.test/accounts/drive");
    // The client opens the link and answers; the call goes on once the person has come back.
    let reply = json!({ key: { "action": "accept" } });
    let signing_in = std::thread::scope(|scope| {
        let going_on =
            scope.spawn(|| call(json!({ "inputResponses": reply, "requestState": asked["requestState"] })));
        std::thread::sleep(std::time::Duration::from_millis(300));
        connect(&firm, &service, &site, "bob");
        going_on.join().expect("the call ends")
    });
    assert_eq!(signing_in["content"][0]["text"], "bob", "{signing_in}");
}

#[test]
fn a_persons_token_is_exchanged_for_one_of_the_server() {
    let (firm, service) = (Firm::new(), Service::start(usual()));
    for subject in ["ann", "bob"] {
        service.accepts(&format!("exchanged-{subject}"), subject);
    }
    let exchange = "{ exchange = { client_id = 'nonet', client_secret = 'at-the-issuer', audience = 'drive', scopes = ['read'] } }";
    let site = firm.serve(with_drive(&service, exchange), "", "");
    let client =
        |subject: &str| WebClient::with_token(&site.address, "/mcp", &firm.token(subject, json!({})));
    let of_ann = firm.token("ann", json!({}));
    let mut ann = WebClient::with_token(&site.address, "/mcp", &of_ann);
    let mut bob = client("bob");
    eventually("ann is ann", || (whoami(&mut ann) == "ann").then_some(()));
    eventually("bob is bob", || (whoami(&mut bob) == "bob").then_some(()));
    let forms = firm.issuer.forms();
    let form = forms.iter().find(|form| form["subject_token"] == of_ann).expect("asked for ann");
    assert_eq!(form["grant_type"], "urn:ietf:params:oauth:grant-type:token-exchange");
    assert_eq!(form["subject_token_type"], "urn:ietf:params:oauth:token-type:access_token");
    assert_eq!((form["audience"].as_str(), form["scope"].as_str()), ("drive", "read"));
    assert_eq!(form["resource"], service.url());
    // The person's own token went to the issuer alone: the service never saw it.
    assert_eq!(forms.len(), 2, "one exchange for each: {forms:?}");
    // Somebody whose token the service does not take.
    let mut eve = client("eve");
    eventually("the exchange does not open it", || {
        let fault = eve.answer("execute_tool", json!({ "name": "drive.whoami" }));
        let message = fault["error"]["message"].as_str()?;
        (fault["error"]["code"] == "auth_required" && message.contains("token of this person")).then_some(())
    });
    assert_eq!(whoami(&mut ann), "ann");
}

#[test]
fn an_issuer_vouches_for_a_person_at_the_servers_own_sign_in() {
    let (firm, service) = (Firm::new(), Service::start(usual()));
    let setup = Setup::new().server_of(
        "drive",
        &format!(
            "url = '{}'\noauth = {{ client_id = 'nonet-at-drive', scopes = ['read'] }}\n\
             credentials = {{ exchange = {{ client_id = 'nonet', id_jag = true }} }}",
            service.url()
        ),
    );
    let site = firm.serve(setup, "", "");
    let client =
        |subject: &str| WebClient::with_token(&site.address, "/mcp", &firm.token(subject, json!({})));
    let (mut ann, mut bob) = (client("ann"), client("bob"));
    eventually("ann is ann", || (whoami(&mut ann) == "ann").then_some(()));
    eventually("bob is bob", || (whoami(&mut bob) == "bob").then_some(()));
    let forms = firm.issuer.forms();
    let form = forms.first().expect("the issuer was asked");
    assert_eq!(form["requested_token_type"], "urn:ietf:params:oauth:token-type:id-jag");
    assert_eq!(form["audience"], service.issuer(), "for the server's own sign-in");
    assert_eq!(service.count("urn:ietf:params:oauth:grant-type:jwt-bearer"), 2, "one token for each");
}

#[test]
fn mixed_calls_of_two_people_never_mix() {
    let (firm, service) = (Firm::new(), Service::start(usual()));
    let site = firm.serve(with_drive(&service, "'user'"), "", "");
    for subject in ["ann", "bob"] {
        connect(&firm, &service, &site, subject);
    }
    // Two gateways share the accounts, as replicas do.
    let beside = again(&site.folder);
    let calls: usize =
        std::env::var("NONET_MIXED_CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(400);
    std::thread::scope(|scope| {
        for turn in 0..4 {
            let subject = if turn % 2 == 0 { "ann" } else { "bob" };
            let (firm, service) = (&firm, &service);
            let site = if turn < 2 { &site } else { &beside };
            scope.spawn(move || {
                let mut client =
                    WebClient::with_token(&site.address, "/mcp", &firm.token(subject, json!({})));
                eventually("the account is connected", || (whoami(&mut client) == subject).then_some(()));
                for call in 0..calls / 4 {
                    assert_eq!(whoami(&mut client), subject, "call {call}");
                    if turn == 0 && call % 997 == 50 {
                        // Tokens end in the middle: one gateway renews them, and each person's refresh token works once.
                        service.revoke(false);
                    }
                }
            });
        }
    });
}
