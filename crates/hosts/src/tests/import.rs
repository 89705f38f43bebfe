//! `nonet import`: from the files of hosts into servers.toml.

use insta::assert_json_snapshot;

use super::*;

#[test]
fn a_file_of_claude_desktop_is_imported() {
    let world = World::new(Os::MacOs);
    world.host_file("claude-desktop", CLAUDE_DESKTOP);
    let imported = world.import_host("claude-desktop");
    let told = world.told(&imported);
    assert_snapshot!(told);
    for secret in
        ["ghp_", "ntn_", "xoxb-", "hunter2", "docs-secret-value", "0a1b2c3d4e5f", "YOUR_API_KEY_HERE"]
    {
        assert!(!told.contains(secret), "{secret}");
        assert!(!imported.change.diff().contains(secret), "{secret}");
    }
}

#[test]
fn files_of_every_other_host_are_imported() {
    for host in HOSTS.iter().map(|host| host.name).filter(|host| *host != "claude-desktop") {
        let world = World::new(Os::Linux).with("LINEAR_API_KEY", "x");
        world.host_file(host, sample(host));
        assert_snapshot!(host, world.told(&world.import_host(host)));
    }
    let world = World::new(Os::Windows);
    let file = world.machine.current.join("hub.json");
    world.write(&file, include_str!("../samples/mcp_hub.json"));
    let imported =
        import(ImportSource::File(&file), &world.servers_toml(), ImportOptions::default(), &world.machine)
            .unwrap();
    assert_snapshot!("mcp-hub", world.told(&imported));
    let world = World::new(Os::Linux);
    world.host_file("opencode", include_str!("../samples/opencode_2.json"));
    assert_snapshot!("opencode-2", world.told(&world.import_host("opencode")));
}

#[test]
fn a_second_import_finds_everything_there() {
    for host in &HOSTS {
        let world = World::new(Os::Linux);
        world.host_file(host.name, sample(host.name));
        let first = world.import_host(host.name);
        first.change.apply().unwrap();
        let again = world.import_host(host.name);
        assert!(again.change.is_nothing(), "{}: {}", host.name, again.change.diff());
        let there = |row: &ImportRow| {
            matches!(
                row.done,
                ImportOutcome::AlreadyThere { .. } | ImportOutcome::Nonet | ImportOutcome::Skipped { .. }
            )
        };
        assert!(again.rows.iter().all(there), "{}: {}", host.name, done(&again));
        // Variables to set are still reported.
        let names =
            |imported: &ImportPlan| imported.variables.iter().map(|v| v.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&first), names(&again), "{}", host.name);
    }
}

#[test]
fn all_hosts_are_imported_in_one_step_or_not_at_all() {
    let world = World::new(Os::Linux);
    let all = |world: &World, replace| {
        let manner = ImportOptions { replace, ..ImportOptions::default() };
        import(ImportSource::All, &world.servers_toml(), manner, &world.machine)
    };
    let nothing = all(&world, false).map(|_| ()).unwrap_err().to_string();
    assert_eq!(nothing, "no MCP client found on this machine. Name a FILE or a client, or paste a server.");

    let server = |token: &str| json!({"command": "gh", "env": {"GITHUB_TOKEN": token}});
    let (one, two) = (server("ghp_aaaaaaaaaaaaaaaaaaaa"), server("ghp_bbbbbbbbbbbbbbbbbbbb"));
    world.host_file("claude-desktop", &config(json!({"gh": one})));
    world.host_file("cursor", &config(json!({"gh": one, "git": {"command": "git-mcp"}})));
    world.host_file("windsurf", &config(json!({"gh": two})));
    // The preview equals the written file: the second import sees what the first one added, and replaces none
    // of it.
    for replace in [false, true] {
        let imported = all(&world, replace).unwrap();
        let expected = "gh added gh, gh already_there gh, git added git, gh added_as gh-2";
        assert_eq!(done(&imported), expected, "{replace}");
        assert!(imported.rows.iter().all(|row| row.notes.is_empty()), "{:?}", imported.rows);
    }
    world.host_file("gemini-cli", "{ \"mcpServers\": ");
    let broken = all(&world, false).map(|_| ()).unwrap_err().to_string();
    assert!(broken.contains("settings.json") && !world.servers_toml().exists(), "{broken}");
}

#[test]
fn what_is_in_servers_toml_stays_as_it_is() {
    let own = include_str!("../../../../servers.toml");
    for own in [own.to_string(), own.replace('\n', "\r\n"), format!("\u{feff}{own}")] {
        let world = World::new(Os::Linux);
        world.write(&world.servers_toml(), &own);
        let imported = world.import(&config(json!({"zulu": {"command": "zulu", "args": ["a"]}})), false);
        imported.change.apply().unwrap();
        let after = fs::read_to_string(world.servers_toml()).unwrap();
        let added = "\n[servers.zulu]\ncommand = \"zulu\"\nargs = [\"a\"]\n";
        let added = if own.contains('\r') { added.replace('\n', "\r\n") } else { added.into() };
        assert_eq!(after.replacen(&added, "", 1), own);
        assert!(after.contains(&added));
    }
}

fn check_join(servers_toml: &str, servers: serde_json::Value, replace: bool, expected: &str) -> String {
    let world = World::new(Os::Linux);
    world.write(&world.servers_toml(), servers_toml);
    let imported = world.import(&config(servers), replace);
    assert_eq!(done(&imported), expected);
    imported.change.apply().unwrap();
    let after = fs::read_to_string(world.servers_toml()).unwrap();
    crate::toml::parse(&after, &world.servers_toml()).unwrap();
    after
}

#[test]
fn long_lines_are_broken_up() {
    let env: serde_json::Map<_, _> = (0..8).map(|n| (format!("LONG_NAME_{n}"), json!("some text"))).collect();
    let after = check_join(
        "",
        json!({"a": {"command": "x", "env": env, "timeout": 5}, "b": {"command": "y"}}),
        false,
        "a added a, b added b",
    );
    assert!(
        after.contains("[servers.a]\ncommand = \"x\"\ntimeout = \"5s\"\n\n[servers.a.env]\nLONG_NAME_0"),
        "{after}"
    );
    assert!(after.ends_with("LONG_NAME_7 = \"some text\"\n\n[servers.b]\ncommand = \"y\"\n"), "{after}");
    // Reading the result back gives the same server.
    check_join(&after, json!({"a": {"command": "x", "env": env}}), false, "a already_there a");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let there = "[servers.git]\ncommand = \"uvx\"\nargs = [\"mcp-server-git\"]\ntags = [\"files\"]\n";
    let same = json!({"git": {"command": "uvx", "args": ["mcp-server-git"], "timeout": 5}});
    assert_eq!(check_join(there, same, false, "git already_there git"), there);
    let other = json!({"git": {"command": "git-server"}});
    let after = check_join(there, other.clone(), false, "git added_as git-2");
    assert_eq!(after, format!("{there}\n[servers.git-2]\ncommand = \"git-server\"\n"));
    assert_eq!(check_join(&after, other.clone(), false, "git already_there git-2"), after);
    let after = check_join(there, other, true, "git replaced git");
    assert_eq!(after, "[servers.git]\ncommand = \"git-server\"\ntags = [\"files\"]\n");
    // Two servers of one name in one file; and a name taken by a category.
    check_join("", json!({"a": {"command": "x"}, "A": {"command": "y"}}), true, "a added a, A added_as a-2");
    let category = "[categories.web]\ndescription = \"w\"\n";
    check_join(category, json!({"web": {"command": "x"}}), false, "web added_as web-2");
    let long = "x".repeat(40);
    let expected = format!("{long} added_as {}", "x".repeat(32));
    check_join("", json!({long: {"command": "x"}}), false, &expected);
    check_join("servers = { a = { command = \"x\" } }\n", json!({"b": {"command": "y"}}), false, "b added b");
    check_join("servers.a.command = \"x\"\n", json!({"b": {"command": "y"}}), false, "b added b");
}

#[test]
fn replacing_keeps_what_the_user_said() {
    let there = "\
[servers.git]           # mine
command = \"old\"         # why
args = [\"x\"]
env = { A = \"b\" }
policy = \"approve\"

[servers.git.tools.push]
policy = \"deny\"

[gateway]
";
    let after =
        check_join(there, json!({"git": {"command": "new", "args": ["y"]}}), true, "git replaced git");
    let expected = there
        .replace("\"old\"", "\"new\"")
        .replace("[\"x\"]", "[\"y\"]")
        .replace("env = { A = \"b\" }\n", "");
    assert_eq!(after, expected);
    let after = check_join(there, json!({"git": {"url": "https://h/mcp"}}), true, "git replaced git");
    assert!(after.contains("[servers.git]           # mine\npolicy = \"approve\"\nurl = \"https://h/mcp\"\n\n[servers.git.tools.push]"), "{after}");
}

#[test]
fn two_accounts_never_share_a_variable() {
    let world = World::new(Os::Linux);
    let entry = |token: &str| json!({"command": "gh", "env": {"GITHUB_TOKEN": token}});
    let both =
        config(json!({"work": entry("ghp_aaaaaaaaaaaaaaaaaaaa"), "home": entry("ghp_bbbbbbbbbbbbbbbbbbbb")}));
    let imported = world.import(&both, false);
    imported.change.apply().unwrap();
    let text = fs::read_to_string(world.servers_toml()).unwrap();
    assert!(
        text.contains("[servers.work]\ncommand = \"gh\"\nenv = { GITHUB_TOKEN = \"${GITHUB_TOKEN}\" }"),
        "{text}"
    );
    assert!(
        text.contains("[servers.home]\ncommand = \"gh\"\nenv = { GITHUB_TOKEN = \"${HOME_GITHUB_TOKEN}\" }"),
        "{text}"
    );
    // Another file has another account under the same name, while one of the two is set here.
    let world = world.with("GITHUB_TOKEN", "ghp_aaaaaaaaaaaaaaaaaaaa");
    let other = config(json!({"work": entry("ghp_cccccccccccccccccccc")}));
    let imported = world.import(&other, false);
    assert_eq!(done(&imported), "work added_as work-2");
    assert_eq!(imported.variables[0].name, "WORK_2_GITHUB_TOKEN");
    assert_eq!(imported.rows[0].done.to_string(), "added as work-2");
    assert_eq!(done(&world.import(&both, false)), "work already_there work, home already_there home");
}

#[test]
fn a_secret_that_servers_toml_has_itself_needs_no_variable() {
    let world = World::new(Os::Linux);
    world.write(&world.servers_toml(), "[servers.gh]\ncommand = \"gh\"\nenv = { TOKEN = \"abcdef\" }\n");
    let imported = world.import(&config(json!({"gh": {"command": "gh", "env": {"TOKEN": "abcdef"}}})), false);
    assert_eq!(done(&imported), "gh already_there gh");
    assert!(imported.variables.is_empty());
}

#[test]
fn a_broken_servers_toml_is_told_and_left() {
    let world = World::new(Os::Linux);
    let file = world.machine.current.join("some.json");
    world.write(&file, &config(json!({"a": {"command": "x"}})));
    for (text, place) in
        [("[servers.a\n", "servers.toml:1:"), ("servers = 3\n", "servers.toml: `servers` is not a table")]
    {
        world.write(&world.servers_toml(), text);
        let fault = import(
            ImportSource::File(&file),
            &world.servers_toml(),
            ImportOptions::default(),
            &world.machine,
        )
        .err()
        .unwrap();
        assert!(fault.to_string().contains(place), "{fault}");
    }
    let missing = import(
        ImportSource::Host(find("zed").unwrap()),
        &world.servers_toml(),
        ImportOptions::default(),
        &world.machine,
    );
    assert!(missing.err().unwrap().to_string().starts_with("there is no file "));
}

#[test]
fn imports_of_pieces_give_a_servers_toml_that_can_be_read() {
    for host in &HOSTS {
        let text = sample(host.name);
        let world = World::new(Os::Linux);
        // Any line that closes a server is a good place to cut.
        for (at, _) in text.match_indices('\n') {
            let closing = if host.name == "codex" || is_yaml(host) { "" } else { "}}" };
            let file = world.host_file(host.name, &format!("{}{closing}", text[..at].trim_end_matches(',')));
            match import(
                ImportSource::File(&file),
                &world.servers_toml(),
                ImportOptions::default(),
                &world.machine,
            ) {
                Ok(imported) => {
                    let after = imported.change.after.unwrap_or_default();
                    let after = String::from_utf8(after).unwrap();
                    crate::toml::parse(&after, &world.servers_toml()).expect("what is written can be read");
                }
                Err(fault) => assert!(fault.at.is_some(), "{fault}"),
            }
        }
    }
}

#[test]
fn rows_are_json_for_machines() {
    let world = World::new(Os::Linux);
    let imported = world.import(&config(json!({"My Server": {"command": "x"}, "bad": {}})), false);
    let rows: serde_json::Value =
        serde_json::from_str(&world.plain(&serde_json::to_string(&imported.rows).unwrap())).unwrap();
    assert_json_snapshot!(rows);
}

#[test]
fn the_default_of_an_input_is_kept() {
    let world = World::new(Os::Linux);
    let inputs = json!([
        { "id": "region", "type": "promptString", "description": "Region", "default": "eu-1" },
        { "id": "size", "type": "pickString", "options": ["s", "m"], "default": "m" },
        { "id": "key", "type": "promptString", "password": true, "default": "hunter2" },
    ]);
    let env = json!({ "REGION": "${input:region}", "SIZE": "${input:size}", "API_KEY": "${input:key}" });
    let file = json!({ "inputs": inputs, "servers": { "a": { "command": "x", "env": env } } }).to_string();
    let imported = world.import(&file, false);
    let text = String::from_utf8_lossy(imported.change.after.as_deref().unwrap()).into_owned();
    assert!(
        text.contains("env = { REGION = \"${region:-eu-1}\", SIZE = \"${size:-m}\", API_KEY = \"${key}\" }"),
        "{text}"
    );
    let asked: Vec<_> = imported.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(asked, ["key"], "what has a default need not be set");
    imported.change.apply().unwrap();
    assert_eq!(done(&world.import(&file, false)), "a already_there a");
}

#[test]
fn a_pasted_text_is_imported_as_a_file_is() {
    let world = World::new(Os::Linux);
    let paste = |text: &str| {
        import(ImportSource::Text(text, &[]), &world.servers_toml(), ImportOptions::default(), &world.machine)
    };
    let imported =
        paste("claude mcp add gh -e GITHUB_TOKEN=<your-token> -e MODE=fast -- npx -y server-gh").unwrap();
    assert_eq!(done(&imported), "gh added gh");
    let text = String::from_utf8_lossy(imported.change.after.as_deref().unwrap()).into_owned();
    assert!(text.contains("env = { GITHUB_TOKEN = \"${GITHUB_TOKEN}\", MODE = \"fast\" }"), "{text}");
    let variable = &imported.variables[0];
    assert_eq!((variable.name.as_str(), variable.set), ("GITHUB_TOKEN", false));
    assert_eq!(variable.what, "the text has a placeholder for it");
    assert!(imported.secrets.is_empty());
    let again = paste("```\nnpx -y server-gh\n```\n```\nuvx mcp-server-git\n```").unwrap();
    assert_eq!(done(&again), "gh added gh, git added git");
    assert!(paste("nothing").is_err());
}
