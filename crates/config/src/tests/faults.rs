//! Faults: each is reported, and costs only what it must.

use super::*;

const FAULTY: &str = r#"# One fault or two per entry; `good` ones stay.
[servers.good]
command = "npx"

[servers.files]
comand = "npx"
args = "-y"
timeout = 60

[servers.Docs]
url = "https://example.com/mcp"

[servers.token]
url = "https://example.com/mcp"
headers = { Authorization = "Bearer ${NOT_SET}" }

[servers.hidden]
url = "${BAD_URL}"
headers = { "a b" = "x", Authorization = "Bearer s3cr3t\n" }

[servers.old]
transport = "ssse"
url = "https://example.com/sse"

[servers.both]
command = "npx"
url = "https://example.com"
headers = {}

[servers.neither]
description = "?"

[servers.mixed]
transport = "http"
command = "npx"
headers = { A = "b" }

[servers.values]
url = "example.com/mcp"
timeout = "0s"
start_timeout = "60"
blocked_tools = ["ok_*", "bad_["]
policy = "ask"
parallel = "yes"

[servers.values.tools.write_file]
policy = "aprove"
alias = ["x"]
title = ""
rename = "write file"
examples = ["notes.md"]

[categories.fine]
servers = ["good", "files"]

[categories.files]
tags = ["x"]

[categories.bad]
servers = ["goood"]
tools = ["x[", 5]

[profiles.good]
categories = ["good", "gateway"]

[profiles.reader]
categories = ["god", "nothing-like-it"]
max_risk = "none"

[apps.good]
steps = [{ tool = "a.b" }]

[apps.empty]
description = "?"

[apps.weekly]
[[apps.weekly.steps]]
id = "fetch"
tool = "a.b"
after = ["wrte"]
[[apps.weekly.steps]]
id = "fetch"
params = { text = "{{fetch}}" }
[[apps.weekly.steps]]
id = "write"
tool = "a.b"
after = ["input"]

[apps.single.steps]
tool = "a.b"
"#;

#[test]
fn every_fault_is_told_at_once() {
    let LoadedConfig { config, faults, .. } = loaded(FAULTY);
    let told = faults.iter().map(|fault| format!("{fault}\n")).collect::<String>();
    let servers: Vec<_> = config.servers.keys().map(ServerName::as_str).collect();
    let others = [keys(&config.apps), keys(&config.profiles), keys(&config.categories)];
    assert_snapshot!(told.replace("/etc/nonet/", ""));
    assert_eq!(servers, ["good"]);
    assert_eq!(others, [["good"], ["good"], ["fine"]]);
    assert!(!told.contains("s3cr3t"));
}

#[test]
fn faults_outside_of_entries_are_fatal() {
    let text = r#"
[gateway]
tool_injection = "compact"
context_window = "200k"
max_result_bytes = 10

[embedder]
hnsw_abov = 5

[server.files]
command = "npx"

[servers.files]
comand = "npx"
"#;
    let unusable = parse(text, Path::new("servers.toml"), here()).unwrap_err();
    assert_snapshot!(unusable);
}

#[test]
fn a_fault_costs_a_client_its_entry_and_a_policy_the_file() {
    let clients =
        "[clients.a]\nmax_result_bytes = 'few'\n[clients.b]\nmatch = ['b']\nmax_result_bytes = 5_000\n";
    let loaded = loaded(clients);
    assert_eq!(loaded.faults[0].entry.as_deref(), Some("clients.a"));
    assert!(!loaded.config.clients.contains_key("a") && loaded.config.clients.contains_key("b"));
    let policy = format!("{clients}[policies.careful]\nrisk = 'hihg'\npolicy = 'deny'\n");
    assert!(parse(&policy, Path::new(FILE), here()).is_err());
}

#[test]
fn a_text_that_is_no_toml_is_fatal_with_its_line() {
    let unusable = parse("[servers.a]\ncommand = npx\n", Path::new("servers.toml"), here()).unwrap_err();
    assert_snapshot!(unusable);
    let twice = parse("[servers.a]\nurl = \"http://a\"\n[servers.a]\n", Path::new("servers.toml"), here());
    assert_snapshot!(twice.unwrap_err());
}

#[test]
fn an_unknown_key_of_the_gateway_costs_only_itself() {
    let text = "[gateway]\nmemory = false\nschedular = false\napprove_webhook = { url = 'https://a.example', secert = 'x' }\napprove_by = 'user'\ntokenz = ['0123456789abcdef']\n[servers.a]\ncommand = 'x'\n";
    let loaded = loaded(text);
    let told: Vec<(usize, &str)> = loaded.faults.iter().map(|fault| (fault.line, &*fault.key)).collect();
    assert_eq!(
        told,
        [(3, "gateway.schedular"), (4, "gateway.approve_webhook.secert"), (6, "gateway.tokenz")]
    );
    assert_eq!(loaded.faults[0].remedy, "Did you mean `scheduler`?");
    let left_out: Vec<&str> = loaded.left_out().into_iter().collect();
    assert_eq!(left_out, ["gateway.approve_webhook.secert", "gateway.schedular", "gateway.tokenz"]);
    let config = loaded.config;
    assert!(!config.gateway.memory && config.gateway.scheduler && config.gateway.approve_webhook.is_some());
    assert_eq!(config.servers.len(), 1);
    assert!(config.guarded, "the author of a misspelt `tokens` wants no open access");
    // A wrong value of a known key still stops the file.
    assert!(parse("[gateway]\nmemory = 'no'\nx = 1\n", Path::new(FILE), here()).is_err());
}

#[test]
fn a_variable_that_is_not_set_costs_its_own_entry() {
    let one = "[servers.a]\nurl = \"${NO}\"\n[servers.b]\ncommand = \"npx\"\n";
    check(one, &["2: servers.a.url: the environment variable `NO` is not set"]);
    assert_eq!(loaded(one).config.servers.len(), 1);
    check(
        "[gateway]\nskills = [\"${NO}\"]",
        &["2: gateway.skills[0]: the environment variable `NO` is not set"],
    );
    let off = "[servers.a]\nenabled = false\nurl = \"${NO}\"\n";
    check(off, &[]);
    assert!(!loaded(off).config.servers[&ServerName::new("a").unwrap()].enabled);
}

#[test]
fn a_server_that_is_left_out_is_known_with_its_faults() {
    let text = r#"
[servers.docs]
url = "https://example.com"
description = "Pages of the wiki"
headers = { A = "${NO}", B = "${TOKEN}" }
[servers.Bad]
command = "x"
description = "for ${TOKEN}"
[servers.many]
a = 1
b = 2
c = 3
d = 4
[servers.off]
enabled = false
comand = "x"
[servers.odd]
enabled = "no"
command = "x"
[servers.good]
command = "x"
"#;
    let left_out = loaded(text).config.left_out;
    assert_eq!(keys(&left_out), ["Bad", "docs", "many", "odd"]);
    assert_eq!(left_out["docs"].description, "Pages of the wiki");
    let told = left_out.values().map(UnusableEntry::why).collect::<Vec<_>>().join("\n");
    assert_snapshot!(told);
    assert!(!format!("{left_out:?}").contains("s3cr3t"));
    assert!(loaded("[servers]\nbad = 5").config.left_out["bad"].why().contains("expected a table"));
}

#[test]
fn odd_files_are_told_too() {
    for (text, expected) in [
        ("servers = 5", vec!["1: servers: expected a table, found a number"]),
        ("[[servers]]", vec!["1: servers: expected a table, found a list"]),
        ("[servers]\na = 1", vec!["2: servers.a: expected a table, found a number"]),
        ("x = 1", vec!["1: x: unknown key"]),
        ("[gateway]\ncontext_window = nan", vec!["2: gateway.context_window: must be a finite number"]),
        (
            "[gateway]\ncontext_window = 1.5",
            vec!["2: gateway.context_window: expected a whole number, found a number"],
        ),
        ("[gateway]\ncontext_window = 1e99", vec!["2: gateway.context_window: must be at most 1000000000"]),
        (
            "[gateway]\ncontext_window = 5000.0",
            vec!["1: gateway: invalid type: floating point `5000.0`, expected u64"],
        ),
        (
            "[servers.a]\nurl = \"http://\"",
            vec!["2: servers.a.url: this value is not a valid address (empty string)"],
        ),
        (
            "[servers.\"a\\nb\"]\ncommand = \"x\"",
            vec![
                "1: servers.\"a\\nb\": `a\\nb` is not a valid server name (only a-z, 0-9 and single `-` or `_` between them are allowed); try `a-b`",
            ],
        ),
        ("[servers.a]\ncommand = \"\"", vec!["2: servers.a.command: must not be empty"]),
        ("[categories.apps]", vec!["1: categories.apps: `apps` is a reserved category"]),
        (
            "[profiles.\"a/b\"]",
            vec!["1: profiles.\"a/b\": `a/b` must be 1 to 64 characters from a-z, A-Z, 0-9, `-` and `_`"],
        ),
        ("[apps.a]\nsteps = []", vec!["2: apps.a.steps: must have at least one step"]),
        (
            "[apps.a]\ntool = \"t\"\noutput = \"x\"",
            vec!["3: apps.a.output: `output` belongs to `steps`, not to `tool`"],
        ),
        (
            "[[apps.a.steps]]\ntool = \"t\"\nid = \"input\"",
            vec!["3: apps.a.steps[0].id: `input` is reserved for the app's input"],
        ),
        (
            "[servers.a]\nurl = \"http://a\"\nheaders.Accept = \"x\"",
            vec!["3: servers.a.headers.Accept: `Accept` is a header set by Nonet itself"],
        ),
        (
            "[servers.a]\ncommand = \"a\"\noauth = {}",
            vec!["3: servers.a.oauth: `oauth` belongs to `url`, not to `command`"],
        ),
        (
            "[servers.a]\nurl = \"http://a\"\nheaders.authorization = \"x\"\n[servers.a.oauth]\nscopes = [\"x\"]",
            vec!["4: servers.a.oauth: a server cannot have both `oauth` and an `Authorization` header"],
        ),
        (
            "[servers.a]\nurl = \"http://a\"\noauth.client_secret = \"x\"\noauth.scope = \"x\"",
            vec![
                "3: servers.a.oauth.client_secret: `client_secret` needs a `client_id`",
                "4: servers.a.oauth.scope: unknown key",
            ],
        ),
        (
            "[servers.a]\nurl = \"http://a\"\noauth.grant = \"client_credentials\"",
            vec!["3: servers.a.oauth.grant: `client_credentials` needs `client_id` and `client_secret`"],
        ),
        (
            "[servers.a]\nurl = \"http://a\"\noauth.redirect_uri = \"https://example.com/callback\"",
            vec![
                "3: servers.a.oauth.redirect_uri: `https://example.com/callback` must be an address on this machine with a \
                 port, such as http://127.0.0.1:3118/callback",
            ],
        ),
        ("[servers.a]\nurl = \"${\"", vec!["2: servers.a.url: invalid variable after `${`"]),
        ("[gateway]\ncontext_window = -1", vec!["2: gateway.context_window: must be at least 1000"]),
        (
            "[gateway]\r\nsoft_deadline = \"0s\"",
            vec!["2: gateway.soft_deadline: `0s` must be greater than zero"],
        ),
        ("\u{feff}[gateway]\nx = 1", vec!["2: gateway.x: unknown key"]),
    ] {
        check(text, &expected);
    }
}

#[test]
fn faults_about_people_and_copies_of_the_log_are_told() {
    let people = "[gateway]\npublic_url = 'https://n.example'\n[auth]\nissuer = 'https://id.example'\n";
    // Without the numbers of the lines.
    let check = |text: &str, expected: &[&str]| {
        let told = faults(text);
        let told: Vec<&str> =
            told.iter().map(|fault| fault.split_once(": ").map_or("", |(_, told)| told)).collect();
        assert_eq!(told, expected, "{text}");
    };
    let server = |keys: &str| format!("[servers.s]\nurl = 'https://s.example/mcp'\n{keys}\n");
    let page = "[auth.page]\nclient_id = 'nonet'\n";
    let user = server("credentials = 'user'");
    check(&format!("{people}{page}{user}"), &[]);
    check(&format!("{people}{}", server("credentials = { exchange = { audience = 's' } }")), &[]);
    check(
        &user,
        &["servers.s.credentials: people have accounts of their own only where they sign in at the gateway"],
    );
    check(
        &format!("{people}{user}"),
        &[
            "servers.s.credentials: people sign in to the server on the gateway's page, which has to know who they are",
        ],
    );
    check(
        &format!("{people}{page}[cluster]\nredis = 'redis://r'\n{user}"),
        &[
            "auth.page: the replicas of a `[cluster]` need one key for the cookies of browsers",
            "servers.s.credentials: the replicas of a `[cluster]` need one key for the tokens of people",
        ],
    );
    check(
        &format!("{people}{page}{}", server("credentials = 'user'\nscope = 'client'")),
        &["servers.s.credentials: each person has a connection already"],
    );
    check(
        &format!("{people}{page}{}", server("credentials = 'everybody'")),
        &["servers.s.credentials: `everybody` must be `shared`, `user` or `{ exchange = {...} }`"],
    );
    check(
        &format!("{people}{page}[servers.p]\ncommand = 'p'\ncredentials = 'user'\n"),
        &["servers.p.credentials: `credentials` belongs to `url`, not to `command`"],
    );
    check(
        &format!("{people}{page}issuer = 'https://other.example'\nlook = {{}}\n"),
        &[
            "auth.page.issuer: `https://other.example` is no issuer of [auth]",
            "auth.page.look: gives the role to nobody",
        ],
    );
    let plain = people.replace("https://n.example", "http://localhost.evil.example");
    check(&format!("{plain}{page}"), &["auth.page: browsers keep its cookies only over TLS"]);
    check(
        "[audit.export.a]\n[audit.export.b]\nfile = 'x'\nwebhook = 'https://x'\n[audit.export.c]\nsyslog = 'tls://x:1'\n\
         [audit.export.d]\nwebhook = 'https://x'\nformat = 'syslog'\n",
        &[
            "audit.export.a: an export needs `file`, `webhook` or `syslog`",
            "audit.export.b.file: an export cannot have both `file` and `webhook`",
            "audit.export.c.syslog: `tls://x:1` is not `udp://HOST:PORT` or `tcp://HOST:PORT`",
            "audit.export.d.format: a webhook gets JSON",
        ],
    );
}

#[test]
fn no_text_makes_it_panic() {
    let shipped = include_str!("../../../../servers.toml");
    let mut random = 1u64;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below.max(1)
    };
    for text in [FAULTY, shipped] {
        let chars: Vec<char> = text.chars().collect();
        for _ in 0..400 {
            let mut mutated = chars.clone();
            for _ in 0..=next(4) {
                let at = next(mutated.len());
                match next(4) {
                    0 => mutated.truncate(at),
                    1 => drop(mutated.get(at).is_some().then(|| mutated.remove(at))),
                    2 => mutated.insert(at, ['"', '[', '{', '$', '=', '\0', 'é', '\n'][next(8)]),
                    _ => mutated.rotate_left(at.min(200)),
                }
            }
            faults(&mutated.into_iter().collect::<String>());
        }
    }
    faults(&format!("a = {}", "[".repeat(100_000)));
    faults(&format!("[{}]", vec!["a"; 20_000].join(".")));
    faults(&format!("{} = 1", vec!["a"; 20_000].join(".")));
}
