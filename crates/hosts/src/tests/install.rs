//! `nonet install` and `uninstall`: round trips.

use super::*;

/// Returns the text in the variants that editors write.
fn variants(text: &str) -> Vec<String> {
    let tabs = text.replace("  ", "\t");
    let mixed = text.replacen('\n', "\r\n", 3);
    vec![
        text.into(),
        text.trim_end().into(),
        text.replace('\n', "\r\n"),
        format!("\u{feff}{}", text.replace('\n', "\r\n")),
        tabs,
        mixed,
    ]
}

#[test]
fn install_and_uninstall_leave_every_byte_as_it_was() {
    for os in SYSTEMS {
        for host in edited_hosts() {
            let mut texts = variants(sample(host.name));
            if is_yaml(host) {
                texts.retain(|text| !text.contains('\t'));
            }
            let empty: &[&str] = if host.name == "continue" {
                &[
                    "",
                    "\n",
                    "# c\n",
                    "\u{feff}",
                    "name: x",
                    "mcpServers: []\n",
                    "mcpServers: # c\n\nrules: []\n",
                    "mcpServers:\n- name: a\n  command: b",
                ]
            } else if host.name == "goose" {
                &[
                    "",
                    "\n",
                    "# c\n",
                    "\u{feff}",
                    "a: 1",
                    "extensions: {} # c\n",
                    "---\nextensions:\na: |\n  extensions:\n",
                    "extensions:\n    a:\n        cmd: b\n\n    # c",
                ]
            } else if host.name == "codex" {
                &[
                    "",
                    "\n",
                    "# only a comment\n",
                    "\u{feff}",
                    "a = 1",
                    "[mcp_servers]\n",
                    "mcp_servers = {}\n",
                ]
            } else {
                &["", "{}", "{ }\n", "\u{feff}{}", "// c\n{\n}\n", "{\"a\":1}", "{\"a\": [1,\n2,], }"]
            };
            texts.extend(empty.iter().map(ToString::to_string));
            // Systems differ in where files are, not in their format.
            texts.truncate(if os == Os::Linux { texts.len() } else { 1 });
            for text in texts {
                for replace in [false, true] {
                    let world = World::new(os);
                    let file = world.host_file(host.name, &text);
                    check_there_and_back(&world, host, &file, &text, replace);
                }
            }
            for scope in [FileScope::User, FileScope::Project] {
                check_made_and_removed(host, scope, os);
            }
        }
    }
}

/// A file created by install is gone after uninstall.
fn check_made_and_removed(host: &'static Host, scope: FileScope, os: Os) {
    let world = World::new(os);
    let Some(file) = host.file(scope, &world.machine) else { return };
    let change = install(host, scope, &launch(), &[], &world.machine).unwrap();
    assert_eq!(change.apply().unwrap(), ChangeResult { file: Some(file.clone()), backup: None });
    let text = fs::read_to_string(&file).unwrap();
    let servers = edit::HostTable { format: host.format, table: host.table, file: &file };
    assert!(servers.entries(&text).unwrap().contains_key("nonet"), "{text}");
    uninstall(host, scope, &world.machine).unwrap().apply().unwrap();
    assert!(!file.exists());
    assert_eq!(beside(&file), Vec::<String>::new());
}

fn check_there_and_back(world: &World, host: &'static Host, file: &Path, text: &str, replace: bool) {
    let context = format!("{} {:?} {text:?}", host.name, world.machine.os);
    let servers = || edit::HostTable { format: host.format, table: host.table, file };
    let entries =
        |text: &str| servers().entries(&text.replace('\u{feff}', "").replace("\r\n", "\n")).unwrap();
    let before = entries(text);
    let names: Vec<String> = if replace { before.keys().cloned().collect() } else { Vec::new() };
    let change = install(host, FileScope::User, &launch(), &names, &world.machine)
        .unwrap_or_else(|fault| panic!("{context}: {fault}"));
    assert!(!change.diff().contains("ghp_"), "{context}");
    let applied = change.apply().unwrap();
    let backup = applied.backup.expect("what was there is kept");
    assert!(backup.display().to_string().ends_with(".nonet-backup-20261121T170000Z"), "{backup:?}");
    assert_eq!(fs::read_to_string(&backup).unwrap(), text);

    let after = fs::read_to_string(file).unwrap();
    let now = entries(&after);
    assert_eq!(now["nonet"][host.program], launch().command, "{context}");
    assert_eq!(now["nonet"]["args"], json!(launch().args), "{context}");
    let kept: Vec<_> = before.keys().filter(|name| !replace && *name != "nonet").collect();
    assert_eq!(now.keys().filter(|name| *name != "nonet").collect::<Vec<_>>(), kept, "{context}");
    assert_eq!(after.starts_with('\u{feff}'), text.starts_with('\u{feff}'), "{context}");
    if text.contains("\r\n") && !text.replace("\r\n", "").contains('\n') {
        assert!(!after.replace("\r\n", "").contains('\n'), "{context}: {after:?}");
    }

    let again = install(host, FileScope::User, &launch(), &names, &world.machine).unwrap();
    assert!(again.is_nothing(), "{context}: {}", again.diff());
    again.apply().unwrap();

    // If Nonet was in the file already, it is removed and the rest is restored.
    if before.contains_key("nonet") {
        uninstall(host, FileScope::User, &world.machine).unwrap().apply().unwrap();
        let sorted = |entries: serde_json::Map<_, _>| entries.into_iter().collect::<BTreeMap<_, _>>();
        let mut expected = sorted(before);
        expected.remove("nonet");
        assert_eq!(sorted(entries(&fs::read_to_string(file).unwrap())), expected, "{context}");
        return;
    }
    let back = uninstall(host, FileScope::User, &world.machine).unwrap();
    for secret in ["ghp_", "Zk3v", "0f0f0f0f", "ctx7sk"] {
        assert!(!back.diff().contains(secret), "{context}");
    }
    back.apply().unwrap();
    assert_eq!(fs::read_to_string(file).unwrap(), text, "{context}");
    assert_eq!(beside(file), Vec::<String>::new(), "{context}");
}

/// Lists the folder of a file, without the file itself.
fn beside(file: &Path) -> Vec<String> {
    let names = fs::read_dir(file.parent().unwrap()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> =
        names.filter(|name| Some(name.as_str()) != file.file_name().unwrap().to_str()).collect();
    // The state folder, beside a file in the home folder.
    names.retain(|name| name != ".local");
    names.sort();
    names
}

#[test]
fn installed_files_look_hand_written() {
    let mut shown = String::new();
    for host in edited_hosts() {
        let world = World::new(Os::Linux);
        world.host_file(host.name, sample(host.name));
        let names: Vec<String> = ["kagi", "exa", "context7", "perplexity", "GitHub"].map(Into::into).into();
        let change = install(host, FileScope::User, &launch(), &names, &world.machine).unwrap();
        shown.push_str(&world.plain(&format!("{}{}\n\n", change.diff(), change.told.join("\n"))));
    }
    for secret in ["Zk3v", "0f0f0f0f", "ctx7sk", "ghp_", "tvly-", "hf_01", "exa-01"] {
        assert!(!shown.contains(secret), "{secret}");
    }
    assert_snapshot!(shown);
}

#[test]
fn after_other_edits_only_nonet_comes_out() {
    let names = ["cursor", "vscode", "zed", "windsurf", "codex", "gemini-cli", "continue", "goose", "kiro"];
    for name in names {
        let host = find(name).unwrap();
        let world = World::new(Os::Linux);
        let file = world.host_file(name, sample(name));
        // Servers of an unapplied import must stay in the host's file.
        let imported = world.import_host(name);
        assert!(imported.carried(host, FileScope::User, &world.machine).is_empty());
        imported.apply().unwrap();
        let carried = world.import_host(name).carried(host, FileScope::User, &world.machine);
        let carried: Vec<String> = carried.into_iter().map(|carried| carried.name).collect();
        assert!(!carried.is_empty());
        install(host, FileScope::User, &launch(), &carried, &world.machine).unwrap().apply().unwrap();
        let mark = if name == "codex" || is_yaml(host) { "# edited\n" } else { "// edited\n" };
        let edited = mark.to_string() + &fs::read_to_string(&file).unwrap();
        fs::write(&file, &edited).unwrap();
        let change = uninstall(host, FileScope::User, &world.machine).unwrap();
        change.apply().unwrap();
        let after = fs::read_to_string(&file).unwrap();
        assert!(after.starts_with(mark) && !after.contains("nonet"), "{name}: {after}");
        let servers = edit::HostTable { format: host.format, table: host.table, file: &file };
        // All servers are restored, though in a different order.
        let sorted = |text: &str| servers.entries(text).unwrap().into_iter().collect::<BTreeMap<_, _>>();
        assert_eq!(sorted(&after), sorted(sample(name)), "{name}");
        assert!(change.told.iter().any(|line| line.contains("is restored from")), "{:?}", change.told);
    }
}

#[test]
fn what_nonet_would_not_run_as_the_host_does_is_not_taken_out() {
    let host = find("vscode").unwrap();
    let world = World::new(Os::Linux);
    let servers = json!({
        "plain": { "command": "x" },
        "filed": { "command": "x", "args": ["1"], "envFile": "/home/me/.env" },
        "boxed": { "command": "x", "args": ["2"], "sandboxEnabled": true },
        "open": { "command": "x", "args": ["3"], "sandboxEnabled": false, "envFile": "" },
        "off": { "command": "x", "args": ["4"], "disabled": true },
        "odd": { "type": "sse" },
    });
    world.host_file("vscode", &json!({ "servers": servers }).to_string());
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names.join(" ")
    };
    let carried =
        |carried: Vec<KnownServer>| sorted(carried.into_iter().map(|carried| carried.name).collect());
    let stay = |stay: Vec<(String, String)>| sorted(stay.into_iter().map(|(name, _)| name).collect());
    let first = world.import_host("vscode");
    let all = "boxed filed odd off open plain";
    assert_eq!(carried(first.will_be_carried(host, FileScope::User, &world.machine)), "open plain");
    assert_eq!(stay(first.will_stay(host, FileScope::User, &world.machine)), "boxed filed odd off");
    assert_eq!(stay(first.staying(host, FileScope::User, &world.machine)), all);
    first.apply().unwrap();
    let now = world.import_host("vscode");
    assert_eq!(carried(now.carried(host, FileScope::User, &world.machine)), "open plain");
    assert_eq!(stay(now.staying(host, FileScope::User, &world.machine)), "boxed filed odd off");
}

#[test]
fn without_a_record_only_nonet_comes_out() {
    let host = find("cursor").unwrap();
    let world = World::new(Os::Linux);
    let file = world.host_file("cursor", sample("cursor"));
    install(host, FileScope::User, &launch(), &["figma".into()], &world.machine).unwrap().apply().unwrap();
    for name in beside(&file) {
        fs::remove_file(file.with_file_name(name)).unwrap();
    }
    uninstall(host, FileScope::User, &world.machine).unwrap().apply().unwrap();
    let after = fs::read_to_string(&file).unwrap();
    assert!(!after.contains("nonet") && !after.contains("figma") && after.contains("github"), "{after}");
    let nothing = uninstall(host, FileScope::User, &world.machine).unwrap();
    assert!(nothing.is_nothing());
    assert!(nothing.told[0].contains("is not in"));
}

#[test]
fn a_second_install_still_goes_back_to_the_beginning() {
    let host = find("cursor").unwrap();
    let mut world = World::new(Os::Linux);
    let file = world.host_file("cursor", sample("cursor"));
    install(host, FileScope::User, &launch(), &["figma".into()], &world.machine).unwrap().apply().unwrap();
    world.machine.now += Duration::from_secs(60);
    let other = LaunchCommand { command: "/new/nonet".into(), args: Vec::new() };
    install(host, FileScope::User, &other, &[], &world.machine).unwrap().apply().unwrap();
    assert!(fs::read_to_string(&file).unwrap().contains("/new/nonet"));
    uninstall(host, FileScope::User, &world.machine).unwrap().apply().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), sample("cursor"));
}

#[test]
fn what_the_user_said_about_nonet_stays() {
    let host = find("vscode").unwrap();
    let world = World::new(Os::Linux);
    let text = "{\n  \"servers\": {\n    \"nonet\": {\n      \"command\": \"old\", // mine\n      \"env\": { \"A\": \"b\" }\n    }\n  }\n}\n";
    let file = world.host_file("vscode", text);
    install(host, FileScope::User, &launch(), &[], &world.machine).unwrap().apply().unwrap();
    assert_snapshot!(fs::read_to_string(&file).unwrap());
}

#[test]
fn broken_files_are_told_and_never_touched() {
    let mut faults = Vec::new();
    for (host, text) in [
        ("claude-desktop", "{\n  \"mcpServers\": {\n    \"a\": {\n"),
        ("cursor", "{\"mcpServers\": []}"),
        ("cursor", "{\"mcpServers\": {}, \"mcpServers\": {}}"),
        ("vscode", "[]"),
        ("vscode", "{'servers': {}}"),
        ("zed", "{\"a\": 1 \"b\": 2}"),
        ("codex", "[mcp_servers.a]\ncommand = \n"),
        ("codex", "a = 1\nmcp_servers = 'x'\n"),
        ("goose", "extensions:\n  a: [\n"),
        ("goose", "a: 1\nextensions: x\n"),
        ("goose", "extensions: {nonet: {cmd: x}}\n"),
        ("continue", "- a\n"),
    ] {
        let world = World::new(Os::Linux);
        let file = world.host_file(host, text);
        let fault =
            install(find(host).unwrap(), FileScope::User, &launch(), &[], &world.machine).err().unwrap();
        faults.push(world.plain(&fault.to_string()));
        assert!(uninstall(find(host).unwrap(), FileScope::User, &world.machine).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert_eq!(beside(&file), Vec::<String>::new());
    }
    assert_snapshot!(faults.join("\n"));
    let world = World::new(Os::Linux);
    let fault =
        install(find("windsurf").unwrap(), FileScope::Project, &launch(), &[], &world.machine).err().unwrap();
    assert!(fault.to_string().starts_with("Windsurf does not support servers of a project."), "{fault}");
}

#[test]
fn no_piece_of_a_file_makes_a_broken_one() {
    for host in edited_hosts() {
        let text = sample(host.name);
        let world = World::new(Os::Linux);
        let file = host.file(FileScope::User, &world.machine).unwrap();
        let servers = edit::HostTable { format: host.format, table: host.table, file: &file };
        // Prefixes, and texts with a piece cut out of the middle.
        let ends = (0..text.len()).step_by(3).filter(|at| text.is_char_boundary(*at));
        let pieces = ends.flat_map(|end| {
            let (start, rest) = text.split_at(end);
            [start.to_string(), format!("{start}{}", rest.get(7..).unwrap_or_default())]
        });
        for piece in pieces {
            let root = read::value(&piece, read::format_of(&piece, &file), &file);
            if let Ok(root) = &root {
                let context = entry::Context {
                    machine: &world.machine,
                    host: Some(host),
                    file: Path::new("f"),
                    folder: None,
                    root,
                };
                for servers in read::servers(root, &world.machine.current).0 {
                    servers.entries.values().for_each(|value| drop(entry::read(value, &context)));
                }
            }
            let entry = serde_json::Map::from_iter([("command".to_string(), json!("nonet"))]);
            if let Ok(edited) = servers.put(&piece, "nonet", &entry) {
                let entries = servers.entries(&edited).expect("what is written can be read");
                assert_eq!(entries["nonet"]["command"], "nonet");
                let back = servers.take(&edited, &["nonet"]).expect("and taken out again");
                assert!(!servers.entries(&back).expect("and still be read").contains_key("nonet"));
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn links_and_permissions_are_kept() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let host = find("cursor").unwrap();
    let world = World::new(Os::Linux);
    let real = world.machine.current.join("dotfiles/mcp.json");
    world.write(&real, sample("cursor"));
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    let file = host.file(FileScope::User, &world.machine).unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    symlink(&real, &file).unwrap();
    let applied = install(host, FileScope::User, &launch(), &[], &world.machine).unwrap().apply().unwrap();
    assert_eq!(applied.file.as_deref(), Some(real.as_path()));
    let backup = applied.backup.unwrap();
    assert!(backup.starts_with(world.machine.home.join(".local/state/nonet/backups")), "{backup:?}");
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    for (file, mode) in [(&real, 0o640), (&backup, 0o600)] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, mode);
    }
    uninstall(host, FileScope::User, &world.machine).unwrap().apply().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), sample("cursor"));
    fs::remove_file(&real).unwrap();
    let fault = install(host, FileScope::User, &launch(), &[], &world.machine).err().unwrap();
    assert!(fault.to_string().contains("has no target"), "{fault}");
}

/// Every backup of a machine, also those beside a file.
fn backups(world: &World, file: &Path) -> Vec<String> {
    let folders = fs::read_dir(world.machine.home.join(".local/state/nonet/backups")).into_iter().flatten();
    let own = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    let mut names: Vec<String> = own
        .chain(fs::read_dir(file.parent().unwrap()).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("backup"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_backup_goes_after_thirty_days_unless_uninstall_needs_it() {
    let host = find("cursor").unwrap();
    let mut world = World::new(Os::Linux);
    let file = world.host_file("cursor", sample("cursor"));
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    let edit = |world: &World, n: &str| {
        let launch = LaunchCommand { command: n.into(), ..launch() };
        install(host, FileScope::User, &launch, &[], &world.machine).unwrap().apply().unwrap();
    };
    // One of an earlier version, beside the file, and one of another file.
    let beside = file.with_file_name("mcp.json.nonet-backup-20261001T000000Z");
    fs::write(&beside, "old").unwrap();
    let other = file.with_file_name("other.json.nonet-backup-20261001T000000Z");
    fs::write(&other, "other").unwrap();
    edit(&world, "/a/nonet");
    assert_eq!(
        backups(&world, &file),
        ["mcp.json.nonet-backup-20261121T170000Z", "other.json.nonet-backup-20261001T000000Z"]
    );
    world.machine.now += day;
    edit(&world, "/b/nonet");
    world.machine.now += 31 * day;
    edit(&world, "/c/nonet");
    // The first one has what was there before Nonet.
    assert_eq!(
        backups(&world, &file),
        [
            "mcp.json.nonet-backup-20261121T170000Z",
            "mcp.json.nonet-backup-20261223T170000Z",
            "other.json.nonet-backup-20261001T000000Z"
        ]
    );
    uninstall(host, FileScope::User, &world.machine).unwrap().apply().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), sample("cursor"));
    world.machine.now += 31 * day;
    crate::backups::Backups::of(&world.machine).sweep();
    assert_eq!(backups(&world, &file), ["other.json.nonet-backup-20261001T000000Z"]);
}

#[test]
fn a_backup_beside_the_file_is_still_restored() {
    let host = find("cursor").unwrap();
    let world = World::new(Os::Linux);
    let file = world.host_file("cursor", sample("cursor"));
    let backup =
        install(host, FileScope::User, &launch(), &[], &world.machine).unwrap().apply().unwrap().backup;
    let backup = backup.unwrap();
    fs::rename(&backup, file.with_file_name(backup.file_name().unwrap())).unwrap();
    uninstall(host, FileScope::User, &world.machine).unwrap().apply().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), sample("cursor"));
    assert_eq!(beside(&file), Vec::<String>::new());
}

#[test]
fn a_diff_shows_no_secret_in_the_lines_around_the_change() {
    let world = World::new(Os::Linux);
    let text = "{\n  \"apiKey\": \"hunter2hunter2\",\n  \"note\": \"sk_live_0123456789abcdefghij\",\n  \"mcpServers\": {}\n}\n";
    world.host_file("cursor", text);
    let change = install(find("cursor").unwrap(), FileScope::User, &launch(), &[], &world.machine).unwrap();
    let diff = change.diff();
    assert!(diff.contains(" \"apiKey\": \"***\"") && diff.contains(" \"note\": \"***\""), "{diff}");
}

#[test]
fn a_file_that_changes_meanwhile_is_not_written() {
    let host = find("cursor").unwrap();
    let world = World::new(Os::Linux);
    let file = world.host_file("cursor", "{}");
    let change = install(host, FileScope::User, &launch(), &[], &world.machine).unwrap();
    fs::write(&file, "{\"mine\": 1}").unwrap();
    assert!(change.apply().err().unwrap().to_string().contains("another program has just changed the file"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"mine\": 1}");
    assert_eq!(beside(&file), Vec::<String>::new());
}

#[test]
fn keys_of_a_yaml_entry_are_set_and_its_other_lines_stay() {
    for (name, there, expected) in [
        (
            "goose",
            "extensions:\n  nonet: # mine\n    cmd: old\n    # why\n    uri: x\n    envs:\n      A: b\n  z:\n    cmd: z\n",
            "extensions:\n  nonet: # mine\n    cmd: /new/nonet\n    # why\n    envs:\n      A: b\n    args: [\"a b\"]\n  z:\n    cmd: z\n",
        ),
        (
            "continue",
            "mcpServers:\n- command: old # c\n  name: nonet\n  env:\n    A: b\n# end\n",
            "mcpServers:\n- command: /new/nonet\n  name: nonet\n  env:\n    A: b\n  args: [\"a b\"]\n# end\n",
        ),
    ] {
        let host = find(name).unwrap();
        let servers = edit::HostTable { format: host.format, table: host.table, file: Path::new("f") };
        let entry = json!({ host.program: "/new/nonet", "args": ["a b"] });
        let edited = servers.put(there, "nonet", entry.as_object().unwrap()).unwrap();
        assert_eq!(edited, expected);
        assert_eq!(servers.put(&edited, "nonet", entry.as_object().unwrap()).unwrap(), expected);
    }
}

#[test]
fn an_entry_to_paste_is_shown_where_the_file_depends_on_the_version() {
    let world = World::new(Os::Linux);
    world.host_file("opencode", sample("opencode"));
    let host = find("opencode").unwrap();
    let fault = install(host, FileScope::User, &launch(), &[], &world.machine).err().unwrap();
    let told = world.plain(&fault.to_string());
    assert!(told.contains(r#"for version 2: {"mcp":{"servers":{"nonet":{"type":"local","command":["/opt/nonet/bin/nonet","--config""#), "{told}");
    let fault = uninstall(host, FileScope::User, &world.machine).err().unwrap().to_string();
    assert!(fault.contains("opencode is set up by hand"), "{fault}");
}
