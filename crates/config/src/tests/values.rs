//! Values: defaults, and what each key means.

use super::*;

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
