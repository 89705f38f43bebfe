//! What a sandboxed server can access, and what no server can access even without a sandbox. The servers are hostile: each
//! call runs a shell.
//!
//! Where the machine allows no namespaces, the rows that need them print a note and end.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, process::Command};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually, fake_server, text_of},
};

fn shell() -> Value {
    json!({ "tools": [{ "name": "sh", "on": { "shell": true } }] })
}

fn run(client: &mut Client, script: &str) -> String {
    text_of(&client.execute("bad.sh", json!({ "run": script }))).to_string()
}

/// Whether this machine allows a whole sandbox.
fn is_possible() -> bool {
    let setup = Setup::new().server_with("bad", shell(), "sandbox = 'standard'");
    setup.write();
    let output = command(setup.folder.path()).args(["check", "--json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let weaker = &told["reach"]["bad"]["sandbox"]["weaker"];
    if weaker.is_string() {
        eprintln!("skipped: {weaker}");
    }
    weaker.is_null()
}

/// Returns a gateway with a hostile sandboxed server, and another server outside with a secret.
fn beside_a_secret(sandbox: &str) -> Client {
    let setup = Setup::new().server_with("bad", shell(), &format!("sandbox = {sandbox}")).server_with(
        "good",
        shell(),
        "env = { GOOD_KEY = 'k3y-of-good' }",
    );
    for folder in [".ssh", "work", "repo"] {
        fs::create_dir(setup.path(folder)).unwrap();
    }
    for (file, text) in [
        (".ssh/id", "private-key"),
        ("secrets.env", "TOKEN=t0ken\n"),
        (".bashrc", "# mine\n"),
        ("repo/a", "readable\n"),
        ("work/old", "old\n"),
    ] {
        fs::write(setup.path(file), text).unwrap();
        fs::set_permissions(setup.path(file), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let variables = [("SSH_AUTH_SOCK", "/tmp/agent"), ("DEPLOY_TOKEN", "d3ploy")];
    let mut client = setup.run_with(&[], &variables);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("bad");
    client.until_ready("good");
    client
}

#[test]
fn a_server_in_a_sandbox_reaches_what_it_was_given_and_nothing_else() {
    if !is_possible() {
        return;
    }
    let mut client = beside_a_secret("{ read = ['repo'], write = ['work'] }");
    let home = client.folder.path().to_path_buf();
    let gateway = client.child.id();
    let mut check = |script: &str, expected: &str| {
        let told = run(&mut client, script);
        assert!(told.contains(expected), "{script}: {told}");
        for secret in ["private-key", "t0ken", "k3y-of-good", "d3ploy", "# mine"] {
            assert!(!told.contains(secret), "{script}: {told}");
        }
    };
    // Files.
    check("cat ~/repo/a", "readable");
    check("echo x > ~/repo/b; echo x > /usr/b; echo $?", "Read-only");
    check("cat ~/work/old && echo new > ~/work/new && echo done", "done");
    check("cat ~/.ssh/id ~/servers.toml ~/secrets.env", "No such file");
    check("ls ~/.local/state/nonet ~/good.script.json", "No such file");
    check("echo evil >> ~/.bashrc && echo own; ls -A ~", "own");
    check("cat /etc/shadow /root/.bashrc; ls /run /var/run", "No such file");
    check("echo 1 > /proc/sys/kernel/panic; echo $?", "Read-only");
    // Processes.
    check("cat /proc/[0-9]*/environ; ls -d /proc/[0-9]* | wc -l", "");
    check(&format!("kill -9 {gateway}; ls /proc/{gateway}/environ"), "No such");
    check("env; echo \"[$SSH_AUTH_SOCK$DEPLOY_TOKEN$NONET_SANDBOX]\"", "[]");
    check("mount -t tmpfs none /mnt; unshare -U true; echo $?", "1");
    assert_eq!(fs::read_to_string(home.join("work/new")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(home.join(".bashrc")).unwrap(), "# mine\n");
    // Files in its own home are still there after a restart, and nobody else is affected.
    assert_eq!(text_of(&client.execute("good.sh", json!({ "run": "echo $GOOD_KEY" }))), "***\n", "its own");
}

#[test]
fn a_folder_that_is_named_keeps_nonets_own_files_hidden() {
    if !is_possible() {
        return;
    }
    let mut client = beside_a_secret("{ read = ['~', 'repo'] }");
    let told =
        run(&mut client, "cat ~/.ssh/id ~/servers.toml ~/secrets.env ~/.local/state/nonet/*; cat ~/repo/a");
    for secret in ["private-key", "t0ken", "k3y-of-good"] {
        assert!(!told.contains(secret), "{told}");
    }
    assert!(told.contains("readable"), "{told}");
}

#[test]
fn the_network_is_what_the_sandbox_says() {
    if !is_possible() {
        return;
    }
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = service.local_addr().unwrap().port();
    std::thread::spawn(move || service.incoming().for_each(drop));
    let reach = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' && echo reached");
    let proxied = |port: u16| {
        format!(
            "bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128; printf \"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n\" >&3; head -1 <&3'"
        )
    };
    let check = |net: &str, script: &str, expected: &str, not: &str| {
        let setup = Setup::new().server_with("bad", shell(), &format!("sandbox = {{ net = {net} }}"));
        let mut client = setup.start();
        client.until_ready("bad");
        let told = run(&mut client, script);
        assert!(told.contains(expected) && !told.contains(not), "{net} {script}: {told}");
    };
    check("true", &reach, "reached", "refused");
    check("'none'", &reach, "refused", "reached");
    let list = format!("['127.0.0.1:{port}']");
    check(&list, &reach, "refused", "reached");
    check(&list, &proxied(port), "200", "403");
    check(&list, &proxied(port ^ 1), "403", "200");
    check("['localhost.example.com:443']", &proxied(port), "403", "200");
}

/// Returns the processes whose command line contains a text.
fn with_command_line(text: &str) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    })
    .collect()
}

#[test]
fn what_left_its_session_ends_with_the_sandbox() {
    if !is_possible() {
        return;
    }
    for way in [Signal::SIGTERM, Signal::SIGKILL] {
        let setup = Setup::new().server_with("bad", shell(), "sandbox = 'standard'");
        let mut client = setup.start();
        client.until_ready("bad");
        let mark = format!("1{:06}", client.child.id());
        run(&mut client, &format!("setsid sleep {mark} > /dev/null 2>&1 & sleep 0.1; echo started"));
        let sleeping = format!("sleep {mark}");
        assert!(!with_command_line(&sleeping).is_empty(), "it runs");
        kill(Pid::from_raw(client.child.id().cast_signed()), way).unwrap();
        eventually("it has ended", || with_command_line(&sleeping).is_empty().then_some(()));
    }
}

#[test]
fn a_sandbox_that_cannot_be_had_is_told_and_the_server_does_not_start() {
    let setup = Setup::new().server_with("bad", shell(), "sandbox = { write = ['nowhere'] }");
    setup.write();
    let output = command(setup.folder.path()).args(["check"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("nowhere, which does not exist"), "{told}");
    assert!(told.contains("bad: its sandbox is incomplete"), "{told}");
}

/// Within a sandbox there are no further namespaces, as in many containers.
#[test]
fn without_namespaces_a_server_is_refused_or_starts_with_what_can_be_had() {
    if !is_possible() {
        return;
    }
    let fake = fake_server();
    let programs = fake.parent().unwrap().parent().unwrap();
    let keys = format!("sandbox = {{ read = [{programs:?}] }}");
    let mut client = Setup::new().server_with("bad", shell(), &keys).start();
    client.until_ready("bad");
    let nonet = env!("CARGO_BIN_EXE_nonet");
    let script = shell().to_string();
    let mut inner = |sandbox: &str, call: &str| {
        let config = format!(
            "[embedder]\nmodel = '/none'\n[servers.inner]\ncommand = '{}'\nargs = ['--script', '{script}']\nsandbox = {sandbox}",
            fake.display()
        );
        let call = json!({ "run": call });
        run(
            &mut client,
            &format!(
                "mkdir -p ~/in; cat > ~/in/servers.toml <<'END'\n{config}\nEND\necho kept > ~/in/secret; \
                 NONET_LOG=warn NONET_KEYRING=off {nonet} --config ~/in/servers.toml call inner.sh '{call}'"
            ),
        )
    };
    let told = inner("'standard'", "echo reached");
    assert!(told.contains("this system does not allow a sandbox: user namespaces"), "{told}");
    assert!(told.contains("required = false"), "{told}");
    let told = inner("{ required = false }", "echo reached");
    assert!(told.contains("reached") && told.contains("weaker sandbox"), "{told}");
    let told = inner(
        "{ required = false }",
        "cat ~/../../../../../../in/secret /tmp/x; echo a > /tmp/a; echo ended",
    );
    assert!(told.contains("ended") && !told.contains("kept"), "{told}");
    assert!(told.contains("Permission denied"), "{told}");
    let net = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/1'; echo ended";
    let told = inner("{ required = false, net = \"none\" }", &net.replace('\'', "\""));
    assert!(told.contains("not permitted"), "{told}");
}

#[test]
fn check_says_what_each_server_could_reach() {
    let setup = Setup::new()
        .server_with(
            "bad",
            shell(),
            "env = { A = 'b' }\nsandbox = { write = ['work'], net = ['a.example.com:443'], env = [] }",
        )
        .server("good", shell());
    fs::create_dir(setup.path("work")).unwrap();
    setup.write();
    let output = command(setup.folder.path()).args(["check"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).replace(setup.folder.path().to_str().unwrap(), "");
    let line = "writes /work; network: a.example.com:443; variables: 3";
    assert!(told.contains(line) && told.contains("no sandbox: good (reach what you can"), "{told}");
    let output = command(setup.folder.path()).args(["check", "--json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bad = &told["reach"]["bad"];
    assert_eq!(bad["variables"], json!(["A", "HOME", "PATH"]), "{bad}");
    assert_eq!(bad["sandbox"]["net"], json!(["a.example.com:443"]), "{bad}");
    assert_eq!(told["reach"]["good"]["sandbox"], json!(null), "{told}");
}

#[test]
fn a_sandbox_belongs_to_a_program_and_has_known_words() {
    let check = |keys: &str, expected: &str| {
        let setup = Setup::new().server_of("a", keys);
        setup.write();
        let output = command(setup.folder.path()).args(["check"]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains(expected), "{keys}: {told}");
    };
    check(
        "url = 'https://127.0.0.1:1/mcp'\nsandbox = 'standard'",
        "`sandbox` belongs to `command`, not to `url`",
    );
    check("command = 'x'\nsandbox = 'strict'", "`strict` is not `off`, `standard` or a table");
    check("command = 'x'\nsandbox = { net = ['example.com'] }", "`example.com` is not a host with a port");
    check("command = 'x'\nsandbox = { net = 'some' }", "`some` is not `all`, `none` or a list");
    check("command = 'x'\nsandbox = { reads = ['a'] }", "Did you mean `read`?");
}

#[test]
fn a_guard_that_is_killed_is_replaced_and_told() {
    let script = json!({ "tools": shell()["tools"], "ignore_eof": true, "pid_file": "PID" });
    let setup = Setup::new();
    let pid_file = setup.path("pid");
    let script = script.to_string().replace("\"PID\"", &json!(pid_file).to_string());
    let mut client = setup.server("bad", serde_json::from_str(&script).unwrap()).start();
    client.until_ready("bad");
    let server = fs::read_to_string(&pid_file).unwrap();
    let gateway = client.child.id();
    let guards = || -> Vec<i32> {
        let is_child = |id: &i32| {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            status.contains(&format!("PPid:\t{gateway}\n")) && !status.contains("State:\tZ")
        };
        with_command_line("__guard").into_iter().filter(is_child).collect()
    };
    let first = eventually("a guard", || guards().first().copied());
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    eventually("another guard", || guards().into_iter().find(|id| *id != first));
    let log = client.folder.path().join("stderr");
    eventually("the log says so", || {
        fs::read_to_string(&log).ok().filter(|log| log.contains("another one replaces it"))
    });
    kill(Pid::from_raw(gateway.cast_signed()), Signal::SIGKILL).unwrap();
    let is_gone = || !fs::exists(format!("/proc/{}", server.trim())).unwrap_or(false);
    eventually("the server ends with the gateway", || is_gone().then_some(()));
}

#[test]
fn secrets_and_open_files_of_the_gateway_stay_with_it() {
    let setup =
        Setup::new().server_with("bad", shell(), "env = { KEY = '${DEPLOY_TOKEN}' }").server("good", shell());
    setup.write();
    let nonet = command(setup.folder.path());
    let mut outer = Command::new("/bin/sh");
    outer
        .args(["-c", "exec 7</etc/hosts; exec \"$0\" \"$@\""])
        .arg(nonet.get_program())
        .args(nonet.get_args());
    for (name, value) in nonet.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    let script = "ls -l /proc/self/fd; echo \"[$DEPLOY_TOKEN]\"";
    let outer =
        outer.env("DEPLOY_TOKEN", "d3ploy").args(["call", "good.sh", &json!({ "run": script }).to_string()]);
    let output = outer.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        told.contains("[]") && !told.contains("/etc/hosts"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
