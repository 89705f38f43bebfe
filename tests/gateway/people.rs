//! People who sign in: whom the gateway admits, what is theirs, and what is nobody else's.

use std::fs;

use nonet_testing::{TokenIssuer, TokenKey};
use serde_json::{Value, json};

use crate::{
    client::command,
    setup::{PATIENCE, Setup, eventually},
    tokens::{INITIALIZE, knock, message},
    web::{Site, WebClient, http, modern_as},
};

/// The address at which clients would reach the gateway.
const PUBLIC: &str = "https://nonet.test";
const MACHINE: &str = "machine-0123456789abcdef";

struct Company {
    key: TokenKey,
    issuer: TokenIssuer,
}

impl Company {
    fn new() -> Self {
        let key = TokenKey::new("one");
        let issuer = TokenIssuer::start(&[&key]);
        Self { key, issuer }
    }

    /// Serves a gateway for its people, with more lines in `[auth]`, and more tables.
    fn serve(&self, setup: Setup, auth: &str, more: &str) -> Site {
        let auth = format!("[auth]\nissuer = '{}'\n{auth}\n{more}", self.issuer.address);
        setup.gateway(&format!("public_url = '{PUBLIC}'")).toml(&auth).serve_program()
    }

    /// Returns a token of a person for `/mcp`, with more claims.
    fn token(&self, subject: &str, more: Value) -> String {
        let mut claims = json!({
            "iss": self.issuer.address, "sub": subject, "aud": format!("{PUBLIC}/mcp"), "exp": 4_102_444_800_u64,
            "name": subject.to_uppercase(),
        });
        for (name, value) in more.as_object().expect("claims") {
            claims[name] = value.clone();
        }
        self.key.token(&self.key.header(), &claims)
    }
}

fn shop() -> Setup {
    let wait = json!({ "name": "wait", "on": { "delay_ms": 4_000, "text": "waited" } });
    Setup::new().server("shop", json!({ "tools": [{ "name": "buy" }, { "name": "look" }, wait] }))
}

#[test]
fn a_client_finds_out_where_to_sign_in() {
    let company = Company::new();
    let profiles = "[profiles.writer]\nscopes = ['files:write']\n[profiles.plain]\nclaims = { staff = true }\n\
                    [profiles.others]\n";
    let site = company.serve(shop(), "scopes = ['mcp']\nprofile = 'others'", profiles);
    let challenge = |path: &str| {
        let refused = knock(&site, path, "");
        assert_eq!(refused.status, 401, "{refused:?}");
        refused.headers["www-authenticate"].clone()
    };
    let at = "https://nonet.test/.well-known/oauth-protected-resource";
    assert_eq!(challenge("/mcp"), format!("Bearer scope=\"mcp\", resource_metadata=\"{at}/mcp\""));
    assert_eq!(
        challenge("/mcp/plain"),
        format!("Bearer scope=\"mcp\", resource_metadata=\"{at}/mcp/plain\"")
    );
    for (path, resource, scopes) in [
        ("", "/mcp", json!(["files:write", "mcp"])),
        ("/mcp", "/mcp", json!(["files:write", "mcp"])),
        ("/mcp/plain", "/mcp/plain", json!(["mcp"])),
        // Nobody learns which profiles there are.
        ("/mcp/nothing", "/mcp/nothing", json!(["mcp"])),
    ] {
        let path = format!("/.well-known/oauth-protected-resource{path}");
        let read = http(&site.address, "GET", &path, &[], "");
        assert_eq!(
            (read.status, read.headers["access-control-allow-origin"].as_str()),
            (200, "*"),
            "{read:?}"
        );
        let document: Value = serde_json::from_str(&read.body).expect("it is JSON");
        assert_eq!(document["resource"], format!("{PUBLIC}{resource}"));
        assert_eq!(document["authorization_servers"], json!([company.issuer.address]));
        assert_eq!(
            (&document["scopes_supported"], &document["bearer_methods_supported"]),
            (&scopes, &json!(["header"]))
        );
    }
    let elsewhere = [("host", "evil.example.com")];
    let path = "/.well-known/oauth-protected-resource/mcp";
    assert_eq!(http(&site.address, "GET", path, &elsewhere, "").status, 403);
    assert_eq!(http(&site.address, "GET", path, &[("host", "nonet.test")], "").status, 200);
}

#[test]
fn a_token_opens_what_its_claims_and_scopes_open() {
    let company = Company::new();
    let profiles = format!(
        "[profiles.analyst]\nonly = ['shop.look']\nclaims = {{ groups = 'analysts' }}\n\
         [profiles.buyer]\nclaims = {{ groups = 'analysts' }}\nscopes = ['buy']\n\
         [profiles.machine]\ntokens = ['{MACHINE}']\n"
    );
    let site = company.serve(shop(), "", &profiles);
    let tools = |path: &str, token: &str| {
        let mut client = WebClient::with_token(&site.address, path, token);
        client.until_ready("shop");
        let found = client.answer("browse_category", json!({ "category": "shop" }));
        let names = found["tools"].as_array().expect("tools").iter();
        names.filter_map(|tool| tool["name"].as_str()).map(Into::into).collect::<Vec<String>>()
    };
    let analyst = company.token("ann", json!({ "groups": ["analysts"] }));
    assert_eq!(tools("/mcp", &analyst), ["shop.look"]);
    let buyer = company.token("ann", json!({ "groups": ["analysts"], "scope": "buy" }));
    assert_eq!(tools("/mcp", &buyer), ["shop.buy", "shop.look", "shop.wait"]);
    // A token of the file goes on beside it.
    assert_eq!(tools("/mcp", MACHINE), ["shop.buy", "shop.look", "shop.wait"]);

    let at_buyer =
        company.token("ann", json!({ "groups": ["analysts"], "aud": format!("{PUBLIC}/mcp/buyer") }));
    let refused = knock(&site, "/mcp/buyer", &at_buyer);
    assert_eq!(refused.status, 403, "{refused:?}");
    let challenge = &refused.headers["www-authenticate"];
    assert!(
        challenge.contains("error=\"insufficient_scope\"") && challenge.contains("scope=\"buy\""),
        "{challenge}"
    );
    assert!(message(&refused).contains("`buy`"), "{refused:?}");
    for (path, audience) in [("/mcp", "/mcp"), ("/mcp/machine", "/mcp/machine"), ("/mcp/no", "/mcp/no")] {
        let guest = company.token("guest", json!({ "aud": format!("{PUBLIC}{audience}") }));
        let refused = knock(&site, path, &guest);
        // Another token would not help.
        let is_over = refused.status == 403 && !refused.headers.contains_key("www-authenticate");
        assert!(is_over, "{path}: {refused:?}");
    }
}

#[test]
fn what_is_no_token_for_this_gateway_is_refused_and_says_why() {
    let company = Company::new();
    let site = company.serve(shop(), "blocked = ['mallory']", "");
    let foreign = TokenKey::new("one");
    let claims = json!({ "iss": company.issuer.address, "sub": "ann", "aud": format!("{PUBLIC}/mcp"), "exp": 4_102_444_800_u64 });
    let check = |token: &str, status: u16, expected: &str| {
        let refused = knock(&site, "/mcp", token);
        assert_eq!(refused.status, status, "{expected}: {refused:?}");
        let told = message(&refused);
        assert!(told.contains(expected) && !told.contains(token), "{expected}: {told}");
        let challenge = refused.headers.get("www-authenticate").cloned().unwrap_or_default();
        assert_eq!(challenge.contains("error=\"invalid_token\""), status == 401, "{challenge}");
    };
    check(&foreign.token(&foreign.header(), &claims), 401, "signature");
    check(&company.token("ann", json!({ "exp": 1 })), 401, "expired");
    check(
        &company.token("ann", json!({ "aud": "https://other.example.com" })),
        401,
        "`https://other.example.com`",
    );
    check(&company.token("ann", json!({ "iss": "https://elsewhere" })), 401, "`[auth]`");
    check(&company.token("mallory", json!({})), 403, "may not use");
    // A token belongs into the header.
    let good = company.token("ann", json!({}));
    let in_query = http(&site.address, "POST", &format!("/mcp?access_token={good}"), &[], INITIALIZE);
    assert_eq!(in_query.status, 401, "{in_query:?}");
    let one = format!("Bearer {good}");
    assert_eq!(knock(&site, "/mcp", &good).status, 200);
    // `/metrics` is about everybody.
    let header = [("authorization", one.as_str())];
    assert_eq!(http(&site.address, "GET", "/metrics", &header, "").status, 200, "everybody is an owner here");
}

#[test]
fn what_is_a_persons_is_no_other_persons() {
    let company = Company::new();
    let site = company.serve(shop(), "", "");
    let (ann, bob) = (company.token("ann", json!({})), company.token("bob", json!({})));
    let mut client = WebClient::with_token(&site.address, "/mcp", &ann);
    client.until_ready("shop");
    client.answer(
        "execute_tool",
        json!({ "name": "gateway.remember", "params": { "text": "the cellar key is under the mat" } }),
    );
    let recall = |token: &str| {
        let mut client = WebClient::with_token(&site.address, "/mcp", token);
        let params = json!({ "query": "cellar key" });
        client.answer("execute_tool", json!({ "name": "gateway.recall", "params": params })).to_string()
    };
    assert!(recall(&company.token("ann", json!({ "jti": "later" }))).contains("under the mat"));
    assert!(!recall(&bob).contains("under the mat"));
    // A task is a person's in all of their sessions.
    let start = json!({ "name": "shop.wait", "background": true });
    let begun = client.answer("execute_tool", start);
    let task = begun["task_id"].as_str().unwrap_or_else(|| panic!("{begun}")).to_string();
    let look = |token: &str| {
        let mut client = WebClient::with_token(&site.address, "/mcp", token);
        let params = json!({ "task_id": task, "wait": true });
        client.call("execute_tool", json!({ "name": "gateway.background_run", "params": params })).to_string()
    };
    assert!(look(&ann).contains("waited"), "{}", look(&ann));
    assert!(look(&bob).contains("not_found"), "{}", look(&bob));
    // A session's id is no key for others: not to use it, and not to end it.
    let mut stolen = WebClient::resumed(&site.address, "/mcp", &client.session, &format!("Bearer {bob}"));
    assert_eq!(stolen.status("tools/list"), 404);
    let header = format!("Bearer {bob}");
    let headers = [("authorization", header.as_str()), ("mcp-session-id", client.session.as_str())];
    http(&site.address, "DELETE", "/mcp", &headers, "");
    assert_eq!(http(&site.address, "GET", "/mcp", &headers, "").status, 404);
    assert_eq!(client.status("tools/list"), 200);
    // The person's next token goes on with it.
    let renewed = company.token("ann", json!({ "jti": "renewed" }));
    let mut renewed =
        WebClient::resumed(&site.address, "/mcp", &client.session, &format!("Bearer {renewed}"));
    assert_eq!(renewed.status("tools/list"), 200);
}

#[test]
fn quotas_and_the_audit_log_know_the_person() {
    let company = Company::new();
    let site = company.serve(shop(), "", "[quotas]\nsessions = 2\n[audit]\n");
    let (ann, bob) = (company.token("ann", json!({})), company.token("bob", json!({})));
    let open = |token: &str| {
        let mut client = WebClient::with_token(&site.address, "/mcp", token);
        client.until_ready("shop");
        client.answer("execute_tool", json!({ "name": "shop.look" }));
        client
    };
    let sessions = [open(&ann), open(&company.token("ann", json!({ "jti": "2" })))];
    let full = knock(&site, "/mcp", &company.token("ann", json!({ "jti": "3" })));
    assert_eq!(full.status, 503, "{full:?}");
    let other = open(&bob);
    drop((sessions, other));
    let logs = site.folder.path().join(".local/state/nonet/audit");
    let lines = eventually("the calls are in the log", || {
        let files = fs::read_dir(&logs).ok()?.flatten();
        let text: String = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let calls: Vec<Value> = lines.into_iter().filter(|line| line["tool"] == "shop.look").collect();
        (calls.len() == 3).then_some(calls)
    });
    let people: Vec<&Value> = lines.iter().map(|line| &line["person"]).collect();
    let person = |subject: &str| json!({ "issuer": company.issuer.address, "subject": subject, "name": subject.to_uppercase() });
    assert_eq!(people, [&person("ann"), &person("ann"), &person("bob")]);
    let status = command(site.folder.path()).args(["status"]).output().expect("nonet runs");
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(!status.contains("eyJ"), "no token is shown: {status}");
}

#[test]
fn a_change_of_the_file_counts_from_the_next_request_on() {
    let company = Company::new();
    let site = company.serve(shop(), "", "[profiles.all]\nclaims = { staff = true }\n");
    let ann = company.token("ann", json!({ "staff": true }));
    let mut client = WebClient::with_token(&site.address, "/mcp", &ann);
    assert_eq!(client.status("tools/list"), 200);
    let file = site.folder.path().join("servers.toml");
    let text = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, text.replace("[auth]\n", "[auth]\nblocked = ['ann']\n")).expect("written");
    let end = std::time::Instant::now() + PATIENCE;
    while client.status("tools/list") != 403 {
        assert!(std::time::Instant::now() < end, "a blocked person is still let in");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(knock(&site, "/mcp", &company.token("bob", json!({ "staff": true }))).status, 200);
}

#[test]
fn conditions_decide_about_calls_by_who_calls_and_how() {
    let company = Company::new();
    let rules = "[policies.big]\ntools = ['shop.buy']\nwhen = '.params.count > 10 and (.caller.claims.groups | index(\"buyers\") | not)'\npolicy = 'deny'\n\
                 [policies.broken]\ntools = ['shop.look']\nwhen = '.params.what | tonumber > 3'\npolicy = 'deny'\n";
    let setup = Setup::new().server(
        "shop",
        json!({ "tools": [
            { "name": "buy", "inputSchema": { "type": "object", "properties": { "count": { "type": "integer" } } } },
            { "name": "look", "inputSchema": { "type": "object", "properties": { "what": { "type": "string" } } } },
        ] }),
    );
    let site = company.serve(setup, "", &format!("{rules}[audit]\n"));
    let call = |token: &str, tool: &str, params: Value| {
        let mut client = WebClient::with_token(&site.address, "/mcp", token);
        client.until_ready("shop");
        let answer = client.answer("execute_tool", json!({ "name": tool, "params": params }));
        answer["error"]["code"].as_str().unwrap_or("ok").to_string()
    };
    let (ann, bob) = (
        company.token("ann", json!({ "groups": ["buyers"] })),
        company.token("bob", json!({ "groups": [] })),
    );
    assert_eq!(call(&ann, "shop.buy", json!({ "count": 100 })), "ok");
    assert_eq!(call(&bob, "shop.buy", json!({ "count": 10 })), "ok");
    assert_eq!(call(&bob, "shop.buy", json!({ "count": 11 })), "forbidden");
    // As text, the number is repaired before the condition is asked.
    assert_eq!(call(&bob, "shop.buy", json!({ "count": "11" })), "forbidden");
    assert_eq!(call(&company.token("eve", json!({})), "shop.buy", json!({ "count": 11 })), "forbidden");
    assert_eq!(call(&ann, "shop.look", json!({ "what": "1" })), "ok");
    assert_eq!(
        call(&ann, "shop.look", json!({ "what": "x" })),
        "forbidden",
        "a condition that fails forbids"
    );
    // In the stateless era, too.
    let params =
        json!({ "name": "execute_tool", "arguments": { "name": "shop.buy", "params": { "count": 11 } } });
    let answer = modern_as(&site.address, &bob, "tools/call", params).body;
    assert!(answer.contains("forbidden"), "{answer}");
    let logs = site.folder.path().join(".local/state/nonet/audit");
    eventually("the rule is in the log", || {
        let files = fs::read_dir(&logs).ok()?.flatten();
        let text: String = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
        text.contains("\"verdict\":\"deny\",\"rule\":\"policies.big\"").then_some(())
    });
}

#[test]
fn what_asks_for_a_condition_asks_for_each_call_and_runs_nothing_twice() {
    let company = Company::new();
    let rules = "[policies.big]\ntools = ['shop.*']\nwhen = '.params.count > 10'\npolicy = 'approve'\n";
    let log = Setup::new();
    let calls = log.path("calls");
    let buy = json!({ "name": "buy", "on": { "text": "bought" },
        "inputSchema": { "type": "object", "properties": { "count": { "type": "integer" } } } });
    let setup = Setup::new().server("shop", json!({ "tools": [buy], "call_log": calls }));
    let site = company.serve(setup, "", rules);
    let mut client = WebClient::with_token(&site.address, "/mcp", &company.token("ann", json!({})));
    client.until_ready("shop");
    let buy = |client: &mut WebClient, count: u32| {
        client.call("execute_tool", json!({ "name": "shop.buy", "params": { "count": count } })).to_string()
    };
    assert!(buy(&mut client, 3).contains("bought"));
    for count in [11, 12] {
        let asked = buy(&mut client, count);
        assert!(asked.contains("needs_approval"), "{asked}");
    }
    let made = || fs::read_to_string(&calls).unwrap_or_default().lines().count();
    assert_eq!(made(), 1);
    // Two items run, and the third waits: after the answer, the first two are not made again.
    let actions = json!([{ "id": "all", "name": "shop.buy", "for_each": [1, 2, 30], "params": { "count": "{{item}}" } }]);
    let asked = client.answer("run_parallel", json!({ "actions": actions }));
    let token = asked["token"].as_str().unwrap_or_else(|| panic!("{asked}")).to_string();
    client.call("ask_user", json!({ "token": token, "answer": "yes" }));
    assert_eq!(made(), 4, "{}", fs::read_to_string(&calls).unwrap_or_default());
}

#[test]
fn a_watch_ends_with_the_rights_of_its_person() {
    let company = Company::new();
    let profiles = "[profiles.staff]\nclaims = { staff = true }\n";
    let site = company.serve(shop(), "", &format!("{profiles}[audit]\n"));
    let ann = company.token("ann", json!({ "staff": true }));
    let mut client = WebClient::with_token(&site.address, "/mcp", &ann);
    client.until_ready("shop");
    let params = json!({ "name": "shop.look", "interval": 5 });
    let begun = client.answer("execute_tool", json!({ "name": "gateway.watch_start", "params": params }));
    assert!(begun["watcher_id"].is_string(), "{begun}");
    let file = site.folder.path().join("servers.toml");
    let text = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, text.replace("[auth]\n", "[auth]\nblocked = ['ann']\n")).expect("written");
    let logs = site.folder.path().join(".local/state/nonet/audit");
    eventually("a check was refused, and the log says by what", || {
        let files = fs::read_dir(&logs).ok()?.flatten();
        let text: String = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
        let refused = |line: &str| line.contains("shop.look") && line.contains("\"rule\":\"auth.blocked\"");
        text.lines().any(refused).then_some(())
    });
}
