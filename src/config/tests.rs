//! End-to-end tests: a text in, a config or faults out.

use std::path::Path;

use insta::{assert_debug_snapshot, assert_snapshot};

use super::*;
use crate::keyring;

const FILE: &str = "/etc/nonet/servers.toml";

fn env(name: &str) -> Option<String> {
    match name {
        "HOME" => Some("/home/ann".into()),
        "TOKEN" => Some("s3cr3t".into()),
        "BAD_TOKEN" => Some("s3cr3t\nline".into()),
        "BAD_URL" => Some("ftp://ann:s3cr3t@example.com".into()),
        _ => None,
    }
}

fn keyring(name: &str) -> Result<String, keyring::Error> {
    match name {
        "TOKEN" => Ok("k3yr1ng".into()),
        "SHUT" => Err(keyring::Error::Locked("asleep".into())),
        "NOWHERE" => Err(keyring::Error::Missing("no bus".into())),
        name => Err(keyring::Error::NoSecret(name.into())),
    }
}

fn here() -> Sources<'static> {
    Sources { env: &env, keyring: &keyring }
}

fn loaded(text: &str) -> Loaded {
    parse(text, Path::new(FILE), here()).unwrap_or_else(|unusable| panic!("{unusable}"))
}

/// Returns every fault of a text, as `line: key: message`.
fn faults(text: &str) -> Vec<String> {
    let faults = match parse(text, Path::new("f"), here()) {
        Ok(loaded) => loaded.faults,
        Err(unusable) => unusable.faults().to_vec(),
    };
    faults.iter().map(|fault| format!("{}: {}: {}", fault.line, fault.key, fault.message)).collect()
}

fn keys<T>(map: &BTreeMap<String, T>) -> Vec<&str> {
    map.keys().map(String::as_str).collect()
}

fn check(text: &str, expected: &[&str]) {
    assert_eq!(faults(text), expected, "{text}");
}

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
    let Loaded { config, faults, .. } = loaded(FAULTY);
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
fn replicas_have_an_address_that_is_not_shown() {
    assert_eq!(loaded("").config.cluster, None);
    let text = "[cluster]\nredis = 'rediss://ann:${TOKEN}@redis.example.com:7000/2'\nname = 'one'\naddress = 'http://a:1/'\ndrain = '5s'\n";
    let cluster = loaded(text).config.cluster.expect("it is there");
    assert_eq!((&*cluster.prefix, cluster.name.as_deref()), ("nonet", Some("one")));
    assert_eq!(cluster.address.as_ref().map(ReplicaAddress::as_str), Some("http://a:1"));
    assert_eq!(cluster.drain, std::time::Duration::from_secs(5));
    let redis = cluster.redis.connections().remove(0);
    assert_eq!(
        (redis.addr().to_string().as_str(), redis.redis_settings().db()),
        ("redis.example.com:7000", 2)
    );
    assert_eq!(cluster.redis.passwords().collect::<Vec<_>>(), ["s3cr3t"]);
    assert!(!format!("{cluster:?}").contains("s3cr3t"));
    assert!(has_cluster("cluster.redis = 1") && !has_cluster("[servers.cluster]") && !has_cluster("["));

    let text = "[cluster]\nredis = ['redis://:${TOKEN}@a:1', 'redis://b']\nsentinel = 'm'\nsentinel_password = '${TOKEN}'\n";
    let cluster = loaded(text).config.cluster.expect("it is there");
    assert_eq!(cluster.redis.connections().len(), 2);
    assert!(!format!("{cluster:?}").contains("s3cr3t"));
    check("[cluster]\nredis = []\n", &["2: cluster.redis: value has less than 1 item"]);
    check(
        "[cluster]\nredis = ['redis://a', 'http://a']\n",
        &["2: cluster.redis[1]: this value is not a redis:// or rediss:// address"],
    );
    let lone = "3: cluster.sentinel_password: `sentinel_password` needs `sentinel`";
    check("[cluster]\nredis = 'redis://a'\nsentinel_password = 'x'\n", &[lone]);
    check("[cluster]\n", &["1: cluster: `redis` is missing"]);
    let unknown = "2: cluster.port: unknown key";
    check("[cluster]\nport = 'a'\nredis = 'redis://a'\n", &[unknown]);
    for address in ["a", "redis://a", "http://a/mcp", "http://a?b", "http://me@a"] {
        let fault =
            format!("3: cluster.address: `{address}` is not an http:// or https:// address without a path");
        check(&format!("[cluster]\nredis = 'redis://a'\naddress = '{address}'\n"), &[&fault]);
    }
    let fault = |redis: &str, why: &str| {
        check(&format!("[cluster]\nredis = '{redis}'\n"), &[&format!("2: cluster.redis: this value {why}")]);
    };
    for redis in ["http://a", "redis.example.com", "redis+cluster://a,b", "unix:///tmp/redis", "${TOKEN}"] {
        fault(redis, "is not a redis:// or rediss:// address");
    }
    fault("redis://:${TOKEN}@", "is not a valid address (invalid client config)");
    fault("redis://:${TOKEN}@a/b", "is not a valid address (invalid client config)");
    fault("rediss://:${TOKEN}@a#insecure", "has a fragment; Nonet always checks certificates");
    let placed = "[cluster]\nredis = 'redis://a'\nlabels = ['gpu']\n[servers.a]\ncommand = 'a'\nplacement = 'label:gpu'\n\
                  [servers.b]\ncommand = 'b'\nplacement = 'one'\n[servers.c]\ncommand = 'c'\nscope = 'client'\nplacement = 'each'\n";
    let config = loaded(placed).config;
    let placements: Vec<_> = config.servers.values().map(|server| server.placement.clone()).collect();
    assert_eq!(placements, [Placement::Label("gpu".into()), Placement::One, Placement::Each]);
    assert_eq!(config.cluster.expect("it is there").labels, ["gpu"]);
    for (keys, cluster, fault) in [
        ("command = 'a'\nplacement = 'two'", true, "`two` is neither `each`, `one` nor `label:NAME`"),
        ("command = 'a'\nplacement = 'label:'", true, "`label:` is neither `each`, `one` nor `label:NAME`"),
        (
            "command = 'a'\nplacement = 'one'",
            false,
            "only a `[cluster]` has more than one place for a program",
        ),
        ("url = 'http://a'\nplacement = 'one'", true, "`placement` belongs to `command`, not to `url`"),
        (
            "openapi = 'a.json'\nplacement = 'each'",
            true,
            "`placement` belongs to `command`, not to `openapi`",
        ),
        (
            "command = 'a'\nplacement = 'one'\nscope = 'client'",
            true,
            "a server with `scope = \"client\"` runs where its client is",
        ),
    ] {
        let more = if cluster { "[cluster]\nredis = 'redis://a'\n" } else { "" };
        check(&format!("[servers.a]\n{keys}\n{more}"), &[&format!("3: servers.a.placement: {fault}")]);
    }
    let names = "[cluster]\nredis = 'redis://a'\nprefix = 'a{b}'\nname = ''\n";
    let expected = [
        "3: cluster.prefix: `a{b}` must be 1 to 64 characters from a-z, A-Z, 0-9, `-` and `_`",
        "4: cluster.name: must not be empty",
    ];
    check(names, &expected);
    assert!(parse(names, Path::new(FILE), here()).is_err(), "what is shared is not left to chance");
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
fn what_is_left_out_has_defaults() {
    let text = r#"
[servers.local]
command = "npx"
[servers.remote]
url = "https://example.com/mcp"
[profiles.all]
[categories.none]
[apps.one]
tool = "local.echo"
[apps.two]
steps = [{ tool = "a.b" }, { tool = "c.d" }]
"#;
    assert_debug_snapshot!(loaded(text));
    assert_debug_snapshot!(loaded("").config);
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
fn a_server_under_its_own_names_has_no_other_names() {
    let server = "[servers.a]\ncommand = 'x'\n[servers.a.tools.write]\nrename = 'save'\ntitle = 'Save'\n";
    check(server, &[]);
    check(
        &server.replace("'x'", "'x'\nexpose = 'verbatim'"),
        &["5: servers.a.tools.write.rename: a server with `expose = \"verbatim\"` keeps its own tool names"],
    );
}

#[test]
fn values_are_read_as_they_are_meant() {
    let text = r#"
[gateway]
soft_deadline = "1m 30s"
skills = ["~/skills", "./more", "/abs"]
[embedder]
model = "models/mini"
[servers.a]
command = "./bin/server"
cwd = "~"
args = ["$${HOME}", "${NO:-x y}"]
env = { TOKEN = "${TOKEN}" }
allowed_tools = ["read_*", "{a,b}"]
[servers.b]
url = "http://localhost:1/mcp"
headers = { Authorization = "Bearer ${TOKEN}" }
"#;
    let config = loaded(text).config;
    assert_debug_snapshot!(config);
    let Transport::Stdio { env, .. } = &config.servers[&ServerName::new("a").unwrap()].transport else {
        panic!("a is a program");
    };
    assert_eq!(env["TOKEN"].expose(), "s3cr3t");
    let allowed = config.servers[&ServerName::new("a").unwrap()].allowed_tools.clone().unwrap();
    for (name, allows) in [("read_file", true), ("a", true), ("b", true), ("ab", false), ("Read_file", false)]
    {
        assert_eq!(allowed.matches(name), allows, "{name}");
    }
    assert!(!Globs::default().matches(""));
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
    let told = left_out.values().map(LeftOut::why).collect::<Vec<_>>().join("\n");
    assert_snapshot!(told);
    assert!(!format!("{left_out:?}").contains("s3cr3t"));
    assert!(loaded("[servers]\nbad = 5").config.left_out["bad"].why().contains("expected a table"));
}

#[test]
fn a_secret_that_the_keyring_does_not_give_costs_its_own_entry() {
    let text = r#"
[servers.none]
url = "https://a.example"
headers = { A = "Bearer ${keyring:NONE}" }
[servers.shut]
command = "${keyring:SHUT}"
[servers.nowhere]
command = "x"
env = { A = "${keyring:NOWHERE}" }
[servers.good]
command = "x"
args = ["--token=${keyring:TOKEN}"]
[servers.off]
enabled = false
command = "${keyring:NONE}"
"#;
    let Loaded { config, faults, .. } = loaded(text);
    let told: Vec<_> =
        faults.iter().map(|fault| format!("{}: {}. {}", fault.key, fault.message, fault.remedy)).collect();
    assert_snapshot!(told.join("\n"));
    let servers: Vec<_> = config.servers.keys().map(ServerName::as_str).collect();
    assert_eq!(servers, ["good", "off"]);
    let good = &config.servers[&ServerName::new("good").unwrap()];
    assert_eq!(good.secrets, [Secret::new("k3yr1ng")]);
    assert!(matches!(&good.transport, Transport::Stdio { args, .. } if args == &["--token=k3yr1ng"]));
}

#[test]
fn the_keyring_is_asked_for_what_is_needed_alone() {
    let asked = std::cell::RefCell::new(Vec::new());
    let keyring = |name: &str| {
        asked.borrow_mut().push(name.to_string());
        Ok("x".to_string())
    };
    let text = r#"
[servers.off]
enabled = false
command = "${keyring:OFF}"
[servers.off.env]
A = "${keyring:OFF}"
[servers.a]
command = "$${keyring:ESCAPED}"
args = ["${TOKEN:-${keyring:DEFAULT}}", "${NO:-${keyring:NEEDED}}"]
"#;
    let sources = Sources { env: &env, keyring: &keyring };
    assert_eq!(parse(text, Path::new(FILE), sources).unwrap().faults, []);
    assert_eq!(*asked.borrow(), ["NEEDED"]);
}

#[test]
fn secrets_are_never_quoted() {
    let text = r#"
[servers.a]
url = "${BAD_URL}"
headers = { A = "${BAD_TOKEN}", B = "s3cr3t\u0000" }
policy = "${TOKEN}"
timeout = "${TOKEN}"
start_timeout = "${keyring:TOKEN}"
[servers.b]
command = "x"
args = ["s3cr3t", 5]
env = { A = 5, "s=" = "s3cr3t" }
[profiles.p]
categories = ["${TOKEN}"]
[apps.x]
steps = [{ tool = "a.b", after = ["${TOKEN}"] }]
"#;
    let faults = faults(text);
    assert_eq!(faults.len(), 11, "{faults:#?}");
    let told = faults.join("\n");
    assert!(!told.contains("s3cr3t") && !told.contains("k3yr1ng"), "{faults:#?}");
}

#[test]
fn tokens_are_long_and_each_stands_in_one_place() {
    check(
        "[profiles.a]\ntokens = [\"${NO}\", \"${TOKEN}\", \"with a space in it\", 5]\n[profiles.b]\n",
        &[
            "2: profiles.a.tokens[0]: the environment variable `NO` is not set",
            "2: profiles.a.tokens[1]: this value must have at least 16 characters; generate one with `openssl rand -hex 32`",
            "2: profiles.a.tokens[2]: this value contains white space or non-ASCII characters",
            "2: profiles.a.tokens[3]: expected a string in quotes, found a number",
        ],
    );
    let twice = "[gateway]\ntokens = ['0123456789abcdef']\n[profiles.a]\ntokens = ['0123456789abcdef']\n";
    check(
        twice,
        &[
            "2: gateway.tokens[0]: is the same token as `profiles.a.tokens[0]`",
            "4: profiles.a.tokens[0]: is the same token as `gateway.tokens[0]`",
        ],
    );
    assert!(parse(twice, Path::new(FILE), here()).is_err(), "nobody can say whose token it is");
    check(
        "[gateway]\ntokens = ['${NO}']",
        &["2: gateway.tokens[0]: the environment variable `NO` is not set"],
    );
    assert!(parse("[gateway]\ntokens = ['${NO}']", Path::new(FILE), here()).is_err());
    let good =
        loaded("[gateway]\ntokens = ['0123456789abcdef']\n[profiles.a]\ntokens = ['fedcba9876543210']\n")
            .config;
    assert!(good.guarded && good.gateway.tokens == [BearerToken::new("0123456789abcdef")]);
    let shown = format!("{good:?}");
    assert!(shown.contains("tokens: [***]") && !shown.contains("0123456789abcdef"), "{shown}");
}

#[test]
fn a_file_that_asks_for_tokens_is_guarded_whatever_its_faults() {
    let guarded = |text: &str| loaded(text).config.guarded;
    for text in [
        "tokens = ['${NO}']",
        "tokens = ['short']",
        "tokens = '0123456789abcdef'",
        "token = ['0123456789abcdef']",
        "Tokens = ['0123456789abcdef']",
    ] {
        assert!(guarded(&format!("[profiles.a]\n{text}\n")), "{text}");
    }
    for text in ["", "tokens = []", "pinned = ['a.b']\ntool_injection = 'auto'"] {
        assert!(!guarded(&format!("[profiles.a]\n{text}\n")), "{text}");
    }
}

#[test]
fn of_several_priorities_the_longest_pattern_holds() {
    let text =
        "[profiles.a]\npriorities = { '*' = 0.5, 'files.*' = 2, '{files.read,x}*' = -10, 'web.*' = 3 }\n";
    let config = loaded(text).config;
    let priorities = &config.profiles["a"].priorities;
    for (name, expected) in
        [("other.x", 0.5), ("files.write", 2.0), ("files.read_it", -10.0), ("web.get", 3.0)]
    {
        assert_eq!(priorities.of(name), Some(expected), "{name}");
    }
    assert_eq!(config.gateway.priorities.of("files.write"), None);
    check(
        "[gateway]\npriorities = { 'a.*' = 11, 'b[' = 1, c = 'x', d = -10.5 }",
        &[
            "2: gateway.priorities.\"a.*\": must be at most 10",
            "2: gateway.priorities.\"b[\": `b[` is not a valid pattern (unclosed character class; missing ']')",
            "2: gateway.priorities.c: expected a number, found a string",
            "2: gateway.priorities.d: must be at least -10",
        ],
    );
}

#[test]
fn steps_that_are_not_a_plan_are_found() {
    let app = |steps: &str| format!("[apps.x]\nsteps = [\n{steps}\n]");
    check(&app(r#"{ tool = "t" }, { tool = "t", params = { a = ["{{step1.b}} {{input.c}}"] } }"#), &[]);
    check(&app(r#"{ tool = "t", after = ["step1"] }"#), &["3: apps.x.steps[0]: the step waits for itself"]);
    check(
        &app(r#"{ id = "a", tool = "t", after = ["c"] },
               { id = "b", tool = "t", params = { x = { y = "{{ a }}" } } },
               { id = "c", tool = "t", after = ["b"] },
               { id = "d", tool = "t", after = ["c"] }"#),
        &["3: apps.x.steps[0]: circular dependency of steps: `a -> c -> b -> a`"],
    );
    check(
        &app(r#"{ id = "step2", tool = "t" }, { tool = "t" }"#),
        &["3: apps.x.steps[1]: `step2` is already the id of step 1"],
    );
    check(
        &app(r#"{ tool = "t", params = { a = ["{{input.b}} {{ setp2[0] }}"] } }, { tool = "t" }"#),
        &["3: apps.x.steps[0].params.a[0]: a template refers to `setp2`, which is not a step"],
    );
    check(
        "[apps.x]\noutput = { a = \"{{step1.a}}{{input.b}}{{inptu}}\" }\nsteps = [{ tool = \"t\" }]",
        &["2: apps.x.output.a: a template refers to `inptu`, which is not a step"],
    );
}

#[test]
fn a_step_does_one_thing_with_the_keys_of_that_one() {
    let app = |steps: &str| format!("[apps.x]\nsteps = [\n{steps}\n]\n[apps.y]\ntool = \"t\"");
    check(
        &app(
            r#"{ tool = "t", when = ".input.a and .steps.b.n > 1", retry = { times = 2, wait = "1s", on = ["timeout"] }, timeout = "5s", select = ".x" },
               { id = "b", app = "y", input = { a = "{{input.a}}" } },
               { tool = "t", for_each = "{{b.rows}}", params = { a = "{{item.x}} {{index}}" }, max_concurrency = 2, on_error = "keep" },
               { ask = { question = "Which of {{b}}?", choices = "{{b}}", allow_multiple = true } },
               { filter = "[.steps.b.rows[] | .n * .input.m] | add", when = ".steps.b" }"#,
        ),
        &[],
    );
    check(
        &app(r#"{ tool = "t", filter = ".steps.nope" },
               { filter = ".steps.step1[", params = { a = 1 }, for_each = [1], input = 1 }"#),
        &[
            "3: apps.x.steps[0].filter: a step cannot have both `tool` and `filter`",
            "3: apps.x.steps[0].filter: the filter refers to `nope`, which is not a step",
            "4: apps.x.steps[1].filter: `.steps.step1[` is not a jq filter (expected `]` for `[` at its end)",
            "4: apps.x.steps[1].params: `params` belongs to `tool`, not to `filter`",
            "4: apps.x.steps[1].for_each: `for_each` belongs to `tool`, not to `filter`",
            "4: apps.x.steps[1].input: `input` belongs to `app`, not to `filter`",
        ],
    );
    check(
        &app(r#"{ when = ".steps.nope", params = { a = "{{item}}" } },
               { tool = "t", app = "y" },
               { tool = "t", input = "x", max_concurrency = 2, on_error = "keep" },
               { app = "yy", retry = {} },
               { ask = { question = "?" }, for_each = "{{step1}}" },
               { tool = "t", when = ".a[", select = "nosuch(1)", retry = { times = 11, on = ["timout"] } },
               { tool = "call_app", max_concurrency = 51, for_each = "{{item}}" }"#),
        &[
            "3: apps.x.steps[0]: a step needs `tool`, `app`, `ask` or `filter`",
            "3: apps.x.steps[0].when: the filter refers to `nope`, which is not a step",
            "3: apps.x.steps[0].params.a: a template refers to `item`, but the step has no `for_each`",
            "4: apps.x.steps[1].app: a step cannot have both `tool` and `app`",
            "5: apps.x.steps[2].input: `input` belongs to `app`, not to `tool`",
            "5: apps.x.steps[2].max_concurrency: `max_concurrency` needs `for_each`",
            "5: apps.x.steps[2].on_error: `on_error` needs `for_each`",
            "6: apps.x.steps[3].app: there is no app `yy`",
            "6: apps.x.steps[3].retry: `retry` belongs to `tool`, not to `app`",
            "7: apps.x.steps[4].for_each: `for_each` belongs to `tool`, not to `ask`",
            "8: apps.x.steps[5].when: `.a[` is not a jq filter (expected `]` for `[` at its end)",
            "8: apps.x.steps[5].select: `nosuch(1)` is not a jq filter (`nosuch` with 1 argument is not known)",
            "8: apps.x.steps[5].retry.times: must be at most 10",
            "8: apps.x.steps[5].retry.on[0]: `timout` is not an error code; choose from unknown_tool, ambiguous_tool, invalid_params, server_starting, server_down, auth_required, forbidden, needs_approval, rate_limited, timeout, cancelled, upstream_error, not_found, internal",
            "9: apps.x.steps[6].tool: a step calls a server's tool, but this is one of Nonet's own nine",
            "9: apps.x.steps[6].max_concurrency: must be at most 50",
            "9: apps.x.steps[6].for_each: a template refers to `item`, but the step has no `for_each`",
        ],
    );
}

#[test]
fn apps_in_apps_make_no_circle() {
    let app = |id: &str, runs: &str| format!("[[apps.{id}.steps]]\napp = \"{runs}\"\n");
    check(&app("a", "a"), &["2: apps.a.steps[0].app: the app calls itself"]);
    let circle = [app("a", "b"), app("b", "c"), app("c", "b")].concat();
    check(
        &circle,
        &[
            "4: apps.b.steps[0].app: circular dependency of apps: `b -> c -> b`",
            "6: apps.c.steps[0].app: circular dependency of apps: `c -> b -> c`",
        ],
    );
    let chain = |length: u8| -> String {
        let name = |at: u8| char::from(b'a' + at).to_string();
        let apps: String = (1..length).map(|at| app(&name(at - 1), &name(at))).collect();
        format!("{apps}[apps.{}]\ntool = \"t\"\n", name(length - 1))
    };
    check(&chain(5), &[]);
    check(
        &chain(6),
        &["2: apps.a.steps[0].app: apps are nested more than 5 deep: `a -> b -> c -> d -> e -> f`"],
    );
    let asking = "[[apps.b.steps]]\nask = { question = \"Well?\" }\n";
    check(
        &[&app("a", "b"), asking].concat(),
        &["2: apps.a.steps[0].app: `b` asks the user, which only an app that is called directly can do"],
    );
}

#[test]
fn a_model_is_the_clients_or_has_an_address() {
    let app = |keys: &str| format!("[apps.x]\nallowed_tools = ['files.*']\n{keys}");
    check(&app("model = 'client'\nmax_turns = 100"), &[]);
    check(&app("model = { base_url = 'http://localhost:1/v1', name = 'm' }\ntimeout = '10m'"), &[]);
    check(
        &app("model = 'gpt'\nmax_turns = 0"),
        &[
            "3: apps.x.model: `gpt` is not a model; the only valid string is `client`",
            "4: apps.x.max_turns: must be at least 1",
        ],
    );
    check(&app("model = 5"), &["3: apps.x.model: expected a table or a string in quotes, found a number"]);
    check(
        &app("[apps.x.model]\nbase_url = 'k3y@'\napi_key = \"s3cr3t\\n\"\nkey = 'x'"),
        &[
            "3: apps.x.model: `name` is missing",
            "4: apps.x.model.base_url: this value is not an http:// or https:// address",
            "5: apps.x.model.api_key: this value contains characters that are not allowed in a header",
            "6: apps.x.model.key: unknown key",
        ],
    );
    check(
        &app("model = 'client'\ntool = 'a.b'\noutput = 'x'"),
        &[
            "4: apps.x.tool: an app cannot have both `tool` and `model`",
            "5: apps.x.output: `output` belongs to `steps`, not to `model`",
        ],
    );
    check(
        &app("tool = 'a.b'"),
        &["2: apps.x.allowed_tools: `allowed_tools` belongs to `model`, not to `tool`"],
    );
    check(
        "[apps.x]\nmodel = { base_url = 'http://a', name = 'm', api_key = '${NO}' }",
        &["2: apps.x.model.api_key: the environment variable `NO` is not set"],
    );
    let text = "[apps.x]\nmodel = { base_url = 'http://a', name = 'm', api_key = '${TOKEN}' }";
    let shown = format!("{:?}", loaded(text).config.apps);
    assert!(shown.contains("Some(***)") && !shown.contains("s3cr3t"), "{shown}");
}

#[test]
fn a_webhook_for_approvals_is_asked_only_where_the_user_approves() {
    let hook = "[gateway]\napprove_webhook = { url = 'https://a.example/ask' }\n";
    let unusable = parse(hook, Path::new(FILE), here()).unwrap_err();
    assert_eq!(
        unusable.faults().iter().map(|fault| &*fault.key).collect::<Vec<_>>(),
        ["gateway.approve_webhook"]
    );
    let by_user = loaded(&format!("{hook}approve_by = 'user'\n")).config.gateway;
    assert_eq!(by_user.approve_webhook.expect("it is there").url.expose(), "https://a.example/ask");
    let server = "[servers.a]\ncommand = 'x'\non_change = 'hold'\napprove_by = 'user'\n";
    let config = loaded(&format!("{hook}{server}")).config;
    let server = config.servers.values().next().expect("a server");
    assert_eq!((server.on_change, server.approve_by), (Some(OnChange::Hold), Some(ApproveBy::User)));
}

#[test]
fn notices_leave_by_one_way() {
    let fatal = |notify: &str| {
        let text = format!("[gateway]\nnotify = {notify}");
        let unusable = parse(&text, Path::new("servers.toml"), here()).unwrap_err();
        let told =
            unusable.faults().iter().map(|fault| format!("{}: {}: {}", fault.line, fault.key, fault.message));
        told.collect::<Vec<_>>()
    };
    assert_eq!(fatal("{}"), ["2: gateway.notify: needs `webhook` or `command`"]);
    assert_eq!(
        fatal("{ webhook = 'http://a', command = ['b'] }"),
        ["2: gateway.notify.command: notices go to `webhook` or to `command`, not to both"]
    );
    assert_eq!(
        fatal("{ command = ['b'], headers = {} }"),
        ["2: gateway.notify.headers: `headers` belongs to `webhook`, not to `command`"]
    );
    assert_eq!(
        fatal("{ webhook = 's3cr3t' }"),
        ["2: gateway.notify.webhook: this value is not an http:// or https:// address"]
    );
    let config = loaded("[gateway]\nnotify = { command = ['./tell', '${TOKEN}'] }").config;
    let outlet = config.gateway.notify.expect("it is there");
    assert_eq!(outlet.command[0].expose(), "/etc/nonet/tell");
    assert!(!format!("{outlet:?}").contains("s3cr3t"));
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
fn no_text_makes_it_panic() {
    let shipped = include_str!("../../servers.toml");
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

#[test]
fn the_schema_is_plain_and_knows_every_table() {
    let mut schema = schema();
    // The embedder's part is tested in its own crate.
    schema["properties"]["embedder"].take();
    let text = serde_json::to_string_pretty(&schema["properties"]).unwrap();
    assert_snapshot!(text);
    for odd in ["anyOf", "oneOf", "\"null\"", "$ref"] {
        assert!(!text.contains(odd), "{odd}");
    }
}

#[test]
fn the_file_is_found_where_it_is_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("servers.toml");
    assert_eq!(find(Some(&missing)).unwrap_err().looked_at.as_deref(), Some(&*missing));
    assert!(matches!(load(&missing, here()), Err(Unusable::Unreadable { .. })));
    std::fs::write(&missing, "[servers.a]\ncommand = \"./a\"\n").unwrap();
    assert_eq!(find(Some(&missing)).unwrap(), missing);
    let config = load(&missing, here()).unwrap().config;
    let Transport::Stdio { command, .. } = &config.servers.values().next().unwrap().transport else {
        panic!()
    };
    assert_eq!(Path::new(command), folder.path().join("a"));
    std::fs::write(&missing, b"\xff").unwrap();
    assert!(matches!(load(&missing, here()), Err(Unusable::Unreadable { .. })));

    let own = |env: Env| own_place(env).unwrap();
    assert_eq!(own(&env), Path::new("/home/ann/.config/nonet/servers.toml"));
    let xdg = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "/x".to_string());
    assert_eq!(own(&xdg), Path::new("/x/nonet/servers.toml"));
    assert_snapshot!(NotFound { looked_at: own_place(&env), named: false });
}

#[test]
fn variables_that_are_not_set_come_from_the_file_of_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secrets) = (folder.path().join("servers.toml"), folder.path().join(secrets_file::NAME));
    let text = r#"
[servers.a]
command = "~/a"
env = { KEPT = "${KEPT}", TOKEN = "${TOKEN}" }
args = ["$${KEPT}", "${NO:-${KEPT}}"]
[servers.b]
url = "https://b.example"
headers = { A = "${MISSING}" }
"#;
    std::fs::write(&file, text).unwrap();
    let mut kept = SecretsFile::read(&secrets).unwrap();
    for (name, value) in [("KEPT", "${TOKEN} kept"), ("TOKEN", "not this one"), ("HOME", "/nowhere")] {
        kept.set(name, value);
    }
    kept.write().unwrap();
    let loaded = load(&file, here()).unwrap();
    let told: Vec<_> = loaded.faults.iter().map(|fault| fault.message.as_str()).collect();
    assert_eq!(told, ["the environment variable `MISSING` is not set"]);
    assert_eq!(loaded.warnings, []);
    let a = &loaded.config.servers[&ServerName::new("a").unwrap()];
    let Transport::Stdio { command, args, env, .. } = &a.transport else { panic!() };
    assert_eq!(command, "/home/ann/a", "the file is for variables, and not for paths");
    assert_eq!((env["KEPT"].expose(), env["TOKEN"].expose()), ("${TOKEN} kept", "s3cr3t"));
    assert_eq!(args, &["${KEPT}", "${TOKEN} kept"]);
    assert_eq!(a.secrets, [Secret::new("${TOKEN} kept")], "it is hidden wherever it turns up");
}

#[test]
fn faults_of_the_file_of_secrets_name_it_and_cost_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secrets) = (folder.path().join("servers.toml"), folder.path().join(secrets_file::NAME));
    std::fs::write(&file, "[servers.a]\ncommand = \"a\"\nenv = { A = \"${A}\" }\n").unwrap();
    std::fs::write(&secrets, "A=1\n\nsk-s3cr3t\n").unwrap();
    let close = |mode| {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&secrets, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    close(0o600);
    let loaded = load(&file, here()).unwrap();
    assert_eq!((loaded.config.servers.len(), loaded.faults.len(), loaded.warnings.len()), (1, 1, 0));
    let told = loaded.faults[0].to_string();
    let expected = "secrets.env:3:1: this line is not `NAME=value`. Write one NAME=value per line; comments start with `#`.";
    assert!(told.ends_with(expected), "{told}");
    close(0o640);
    let warnings = load(&file, here()).unwrap().warnings;
    assert_eq!(warnings.len(), usize::from(cfg!(unix)));
    assert!(warnings.iter().all(|warning| warning.remedy.contains("chmod 600")), "{warnings:?}");
    // An entirely unreadable file.
    std::fs::remove_file(&secrets).unwrap();
    std::fs::create_dir(&secrets).unwrap();
    let faults = load(&file, here()).unwrap().faults;
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults.iter().any(|fault| fault.message.contains("cannot read")), "{faults:?}");
    // If it may be the reason why servers.toml is unusable, it is among the faults.
    std::fs::write(&file, "[gateway]\nskills = [\"${A}\"]\n").unwrap();
    let unusable = load(&file, here()).unwrap_err().to_string();
    assert!(unusable.contains("cannot read"), "{unusable}");
}

#[test]
fn what_every_server_inherits_is_joined_with_what_it_inherits_itself() {
    let text = r#"
[gateway]
inherit_env = ["AWS_*", "KUBECONFIG"]
[servers.a]
command = "a"
inherit_env = ["KUBECONFIG", "A"]
[servers.b]
command = "b"
"#;
    let config = loaded(text).config;
    let inherits = |name: &str| {
        let Transport::Stdio { inherit_env, .. } = &config.servers[&ServerName::new(name).unwrap()].transport
        else {
            panic!()
        };
        inherit_env.patterns().to_vec()
    };
    assert_eq!(inherits("a"), ["KUBECONFIG", "A", "AWS_*"]);
    assert_eq!(inherits("b"), ["AWS_*", "KUBECONFIG"]);
    let wrong = "[servers.a]\nurl = \"http://a\"\ninherit_env = [\"A\"]\n[servers.b]\ncommand = \"b\"\ninherit_env = [\"[\"]\n";
    check(
        wrong,
        &[
            "3: servers.a.inherit_env: `inherit_env` belongs to `command`, not to `url`",
            "6: servers.b.inherit_env[0]: `[` is not a valid pattern (unclosed character class; missing ']')",
        ],
    );
}

#[test]
fn the_shipped_file_has_no_fault() {
    let text = include_str!("../../servers.toml");
    let loaded = parse(text, Path::new(FILE), Sources::NONE).unwrap();
    assert_eq!(loaded.faults, []);
    assert_eq!(loaded.config.servers.len(), 7);
}

/// Editors complete from this schema: `#:schema` in the first line of `servers.toml`.
#[test]
fn the_schema_for_editors_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/servers.schema.json");
    let kept = std::fs::read_to_string(file).expect("it is there");
    let now = serde_json::to_string_pretty(&super::schema()).expect("it is JSON");
    assert!(kept.trim() == now, "update it: cargo run -- schema > docs/servers.schema.json");
}

#[test]
fn the_reference_in_the_docs_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference.md");
    let kept = std::fs::read_to_string(file).expect("it is there");
    assert!(kept == super::reference(), "update it: cargo run -- schema --markdown > docs/reference.md");
}

#[test]
fn a_rest_service_has_a_document_endpoints_or_both() {
    let settings = |text: &str| {
        let config = loaded(text).config;
        config.servers.values().next().expect("it has no fault").clone()
    };
    let by_document = settings("[servers.a]\nopenapi = 'api.yaml'\noperations = ['get_*']\n");
    assert_eq!(by_document.timeout.as_secs(), 30);
    let Transport::Rest(rest) = &by_document.transport else { panic!("{by_document:?}") };
    assert_eq!(rest.openapi, Some(OpenApi::File("/etc/nonet/api.yaml".into())));
    assert_eq!((rest.max_response_bytes, rest.private_addresses), (10_000_000, false));
    assert_eq!(by_document.transport.sign_in(), None, "no document decides where tokens go");
    let by_hand = settings(
        "[servers.a]\nbase_url = 'https://api.example.com'\ntimeout = '2m'\n\
         [servers.a.endpoints.look]\npath = '/x/{id}'\nrisk = 'high'\ntags = ['x']\n\
         [servers.a.tools.look]\nrisk = 'low'\n",
    );
    assert_eq!((by_hand.timeout.as_secs(), by_hand.tools["look"].risk), (120, Some(Risk::Low)));
    assert_eq!(by_hand.tools["look"].tags, ["x"]);
    assert_eq!(by_hand.transport.sign_in().map(|(url, ..)| url), Some("https://api.example.com"));
    let both = settings(
        "[servers.a]\nopenapi = 'https://api.example.com/openapi.json'\n\
         [servers.a.endpoints.look]\npath = '/x'\n",
    );
    let Transport::Rest(rest) = &both.transport else { panic!("{both:?}") };
    assert_eq!(rest.openapi, Some(OpenApi::Url("https://api.example.com/openapi.json".into())));
    assert_eq!(rest.endpoints.len(), 1);
}

#[test]
fn every_fault_of_a_rest_service_is_told() {
    let text = r#"
[servers.both]
openapi = "x.json"
url = "https://example.com/mcp"

[servers.program]
command = "x"
base_url = "https://api.example.com"
headers_out = ["X"]

[servers.transport]
openapi = "x.json"
transport = "http"
args = ["x"]

[servers.values]
openapi = "ftp://example.com/x.json"
base_url = "https://example.com/?key=s3cr3t#x"
operations = ["x["]
headers_out = ["a b"]
max_response_bytes = 1

[servers.sign_in]
openapi = "x.json"
oauth = {}

[servers.homeless]
operations = ["x"]
[servers.homeless.endpoints.look]
path = "/x"

[servers.empty]
base_url = "https://api.example.com"
endpoints = {}

[servers.hand]
base_url = "https://api.example.com"
[servers.hand.endpoints."a b"]
path = "/x"
[servers.hand.endpoints.paths]
path = "x"
method = "FETCH"
[servers.hand.endpoints.braces]
path = "/x/{id"
[servers.hand.endpoints.twice]
path = "/x/{id}"
query = ["id"]
body = ["a"]
header = ["Content-Type", "Authorization"]
[servers.hand.endpoints.schema]
path = "/x/{id}"
input_schema = { properties = { other = { type = "string" } } }
[servers.hand.endpoints.kind]
path = "/x"
input_schema = { type = "array" }
[servers.hand.endpoints.bad]
path = "/x"
input_schema = { properties = { a = { type = "text" } } }
[servers.hand.endpoints.pathless]
methd = "GET"
"#;
    let told: Vec<String> = loaded(text).faults.iter().map(ToString::to_string).collect();
    let told = told.join("\n").replace("/etc/nonet/", "");
    assert!(!told.contains("s3cr3t"), "{told}");
    assert_snapshot!(told);
}
