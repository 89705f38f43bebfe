//! What a sandboxed server can access, and what no server can access even without a sandbox. The servers are
//! hostile: each call runs a shell.
//!
//! Where the machine allows no namespaces, the rows that need them print a note and end.

use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    process::Command,
    sync::Arc,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually, fake_server, text_of},
    web::{OWN_TOKEN, WebClient, give_token},
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
    for folder in [".ssh", "work", "repo", ".local/state/nonet/backups/0"] {
        fs::create_dir_all(setup.path(folder)).unwrap();
    }
    for (file, text) in [
        (".ssh/id", "private-key"),
        ("secrets.env", "TOKEN=t0ken\n"),
        (".local/state/nonet/backups/0/mcp.json.nonet-backup-20990101T000000Z", "b4ckup"),
        (".bashrc", "# mine\n"),
        ("repo/a", "readable\n"),
        ("work/old", "old\n"),
    ] {
        fs::write(setup.path(file), text).unwrap();
        fs::set_permissions(setup.path(file), fs::Permissions::from_mode(0o600)).unwrap();
    }
    give_token(setup.folder.path());
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
    let gateway = client.pid();
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
    let told = run(
        &mut client,
        "cat ~/.ssh/id ~/servers.toml ~/secrets.env ~/.local/state/nonet/* ~/.local/state/nonet/backups/*/*; cat ~/repo/a",
    );
    for secret in ["private-key", "t0ken", "k3y-of-good", "b4ckup", OWN_TOKEN] {
        assert!(!told.contains(secret), "{told}");
    }
    assert!(told.contains("readable"), "{told}");
}

#[test]
fn no_sandbox_reaches_the_gateways_own_ports_sockets_and_token() {
    if !is_possible() {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).unwrap().port();
    let forms = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "127.1.2.3"];
    let listed: Vec<String> = forms.iter().map(|host| format!("'{host}:{port}'")).collect();
    let site = Setup::new()
        .gateway("allow_without_tokens = true")
        .server_with("open", shell(), "sandbox = { read = ['~'] }")
        .server_with("listed", shell(), &format!("sandbox = {{ net = [{}] }}", listed.join(", ")))
        .server("free", shell())
        .serve_at(&format!("127.0.0.1:{port}"));
    let mut client = WebClient::new(&site.address, "/mcp");
    for server in ["open", "listed", "free"] {
        client.until_ready(server);
    }
    let mut run = |server: &str, script: &str| {
        let params = json!({ "name": format!("{server}.sh"), "params": { "run": script } });
        text_of(&client.call("execute_tool", params)).to_string()
    };
    let knock = format!(
        "bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; printf \"GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n\" >&3; head -1 <&3'"
    );
    let (free, open) = (run("free", &knock), run("open", &knock));
    assert!(free.contains(" 200 ") && open.contains(" 403 "), "{free} {open}");
    for host in forms {
        let tunnel = format!(
            "bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128; printf \"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n\" >&3; cat <&3'"
        );
        let told = run("listed", &tunnel);
        assert!(told.contains(" 403 ") && told.contains("Nonet's own ports"), "{host}: {told}");
    }
    let look = "find ~ -name '*.sock' -o -name '*.page' -o -name 'http.token'; echo looked";
    assert_eq!(run("open", look), "looked\n");
    assert!(run("free", look).contains("http.token"), "they are there");
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
        let mut client = setup.start_program();
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

/// Starts a process in a session of its own, whose parent ends. Returns its command line.
fn leave_session(client: &mut Client) -> String {
    let sleeping = format!("sleep 1{:06}", client.pid());
    run(client, &format!("(setsid {sleeping} > /dev/null 2>&1 &) ; echo started"));
    eventually("it runs", || (!with_command_line(&sleeping).is_empty()).then_some(()));
    sleeping
}

#[test]
fn what_left_its_session_ends_with_the_sandbox() {
    if !is_possible() {
        return;
    }
    what_left_its_session_ends("sandbox = 'standard'");
}

#[test]
fn what_left_its_session_ends_with_a_server_without_a_sandbox_too() {
    what_left_its_session_ends("");
    // With its server, too.
    let mut client = Setup::new().server("bad", shell()).server("good", shell()).start_program();
    client.until_ready("bad");
    client.until_ready("good");
    let sleeping = leave_session(&mut client);
    let config = client.folder.path().join("servers.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("[servers.bad]", "[servers.bad]\nenabled = false")).unwrap();
    eventually("it has ended", || with_command_line(&sleeping).is_empty().then_some(()));
    assert_eq!(text_of(&client.execute("good.sh", json!({ "run": "echo well" }))), "well\n");
}

fn what_left_its_session_ends(keys: &str) {
    for way in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut client = Setup::new().server_with("bad", shell(), keys).start_program();
        client.until_ready("bad");
        let sleeping = leave_session(&mut client);
        kill(Pid::from_raw(client.pid().cast_signed()), way).unwrap();
        eventually("it has ended", || with_command_line(&sleeping).is_empty().then_some(()));
    }
}

#[test]
fn parts_of_proc_that_show_or_change_the_machine_cannot_be_opened_not_even_by_root() {
    if !is_possible() {
        return;
    }
    let mut client = Setup::new().server_with("bad", shell(), "sandbox = 'standard'").start_program();
    client.until_ready("bad");
    let script = "for file in kpageflags kpagecount kcore kmsg kallsyms sysrq-trigger timer_list; do \
        cat /proc/$file > /dev/null && echo opened $file; echo h > /proc/$file && echo wrote $file; done; \
        echo 1 > /proc/sys/kernel/sysrq && echo wrote sys; ls -A /proc/scsi /proc/acpi; \
        head -c 5 /proc/meminfo /proc/cpuinfo /proc/sys/kernel/ostype && echo readable";
    let told = run(&mut client, script);
    assert!(!told.contains("opened") && !told.contains("wrote"), "{told}");
    assert!(told.contains("Permission denied") && told.ends_with("readable\n"), "{told}");
}

/// The folder of the sandboxes' home folders.
fn homes(client: &Client) -> Vec<String> {
    let folder = client.folder.path().join(".local/state/nonet/sandboxes");
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn servers_of_equal_names_share_no_home_and_forget_deletes_the_homes() {
    if !is_possible() {
        return;
    }
    let setup = Setup::new().server_with("bad", shell(), "sandbox = 'standard'");
    let earlier = setup.path(".local/state/nonet/sandboxes/bad");
    fs::create_dir_all(&earlier).unwrap();
    fs::write(earlier.join("of-before"), "").unwrap();
    let mut one = setup.start_program();
    one.until_ready("bad");
    let both = "of-before\nof-one\n";
    assert_eq!(run(&mut one, "touch ~/of-one; ls ~ | grep of-"), both, "the first takes the home over");
    let other = Setup::new().server_with("bad", shell(), "sandbox = 'standard'");
    let home = one.folder.path().to_str().unwrap().to_string();
    let mut two = other.run_with(&[], &[("HOME", &home)]);
    two.initialize("2025-06-18", json!({}));
    two.until_ready("bad");
    assert_eq!(run(&mut two, "ls ~ | grep of-; echo ended"), "ended\n");
    assert_eq!(homes(&one).len(), 2);
    two.leave();
    two.ended();
    let forget = |client: &Client| {
        let output = command(client.folder.path()).args(["forget", "homes", "--yes"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let told = forget(&one);
    assert!(told.contains("deleted 1 home folder of sandboxed servers"), "{told}");
    assert!(told.contains("its server is running"), "{told}");
    assert_eq!(run(&mut one, "ls ~ | grep of-"), both);
    one.leave();
    one.ended();
    forget(&one);
    assert_eq!(homes(&one), Vec::<String>::new());
}

#[test]
fn sockets_of_other_programs_in_its_folders_are_closed_and_told() {
    if !is_possible() {
        return;
    }
    let check = |write: &str, expected: &str| {
        let setup = Setup::new().server_with("bad", shell(), &format!("sandbox = {{ write = {write} }}"));
        let folder = setup.path("work/deep");
        fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("bus");
        let bus = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || bus.incoming().for_each(drop));
        let config = setup.write();
        let mut client = Client::over(Arc::new(setup.folder), &[], &[]);
        client.initialize("2025-06-18", json!({}));
        client.until_ready("bad");
        let connect =
            "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('reached')";
        let told = run(&mut client, &format!("/usr/bin/python3 -c {connect:?} {} 2>&1", socket.display()));
        assert!(told.contains(expected), "{write}: {told}");
        let output = command(config.parent().unwrap()).arg("check").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let is_told = told.contains(&format!("closes the sockets {}", socket.display()));
        assert_eq!(is_told, expected != "reached", "{told}");
        // Its own sockets work.
        let own = "import socket; socket.socket(socket.AF_UNIX).bind('/tmp/own'); print('bound')";
        assert_eq!(run(&mut client, &format!("/usr/bin/python3 -c {own:?}")), "bound\n");
    };
    check("['work']", "ConnectionRefusedError");
    check("['work', 'work/deep/bus']", "reached");
}

/// Takes 400 MB in a way that no limit of a process's own memory counts.
const SHARED_MEMORY: [&str; 2] = [
    "import mmap; it = mmap.mmap(-1, 400 << 20)",
    "import mmap, os; file = os.memfd_create('a'); os.ftruncate(file, 400 << 20); it = mmap.mmap(file, 400 << 20)",
];
const WRITTEN: &str = "memfd = __import__('os').memfd_create('a')\nfor _ in range(400): __import__('os').write(memfd, bytes(1 << 20))";

/// The system may end the server in place of the program that takes too much.
fn cannot_take_shared_memory(client: &mut Client) {
    let each = "for at in range(0, 400 << 20, 4096): it[at] = 1";
    let scripts = SHARED_MEMORY.map(|begin| format!("{begin}\n{each}"));
    for script in scripts.into_iter().chain([WRITTEN.into()]) {
        let run = format!("/usr/bin/python3 -c \"{script}\nprint('had ' + 'it')\" 2>&1; echo ended");
        let told = client.execute("bad.sh", json!({ "run": run })).to_string();
        assert!(!told.contains("had it") && !told.contains("SyntaxError"), "{script}: {told}");
        client.until_ready("bad");
    }
    for folder in ["/dev/shm", "/tmp"] {
        let told =
            run(client, &format!("head -c 100000000 /dev/zero > {folder}/a; rm {folder}/a; echo ended"));
        assert!(told.contains("No space left") && told.ends_with("ended\n"), "{told}");
    }
    assert_eq!(run(client, "/usr/bin/python3 -c 'print(len(bytes(50 << 20)))'"), "52428800\n");
}

/// Returns what `nonet check` says about the limits of a server.
fn limits(setup: &Setup, wrapper: &[&str]) -> String {
    setup.write();
    let nonet = command(setup.folder.path());
    let output = wrapped(&nonet, wrapper).arg("check").output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    told.lines().find(|line| line.contains("limits: ")).unwrap_or_else(|| panic!("{told}")).to_string()
}

/// Returns a command run by another one, with its own variables.
fn wrapped(nonet: &Command, wrapper: &[&str]) -> Command {
    let all: Vec<_> = wrapper
        .iter()
        .map(std::ffi::OsStr::new)
        .chain([nonet.get_program()])
        .chain(nonet.get_args())
        .collect();
    let mut outer = Command::new(all[0]);
    outer.args(&all[1..]);
    if let Some(folder) = nonet.get_current_dir() {
        outer.current_dir(folder);
    }
    for (name, value) in nonet.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// Runs a command where no control group can be made.
const WITHOUT_GROUPS: [&str; 5] =
    ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\""];

#[test]
fn a_limit_on_memory_counts_shared_memory_and_what_enforces_it_is_told() {
    if !is_possible() {
        return;
    }
    let setup = || Setup::new().server_with("bad", shell(), "sandbox = { memory_bytes = 200000000 }");
    let told = limits(&setup(), &[]);
    let with_group = told.contains("a control group counts all its processes together");
    assert!(with_group || told.contains("RLIMIT_AS"), "{told}");
    let mut client = setup().start_program();
    client.until_ready("bad");
    cannot_take_shared_memory(&mut client);
    if !can_hide_groups() {
        return;
    }
    let told = limits(&setup(), &WITHOUT_GROUPS);
    assert!(told.contains("there is no control group") && told.contains("RLIMIT_AS"), "{told}");
    let setup = setup();
    setup.write();
    let nonet = command(setup.folder.path());
    let mut client = Client::of(Arc::new(setup.folder), &mut wrapped(&nonet, &WITHOUT_GROUPS));
    client.initialize("2025-06-18", json!({}));
    client.until_ready("bad");
    cannot_take_shared_memory(&mut client);
    assert!(client.stderr().contains("limits of its sandbox: there is no control group"));
}

fn can_hide_groups() -> bool {
    let [program, rest @ ..] = &WITHOUT_GROUPS;
    let can = Command::new(program).args(rest).arg("true").status().is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: control groups cannot be hidden here");
    }
    can
}

#[test]
fn a_limit_on_processes_holds_for_root_too_or_the_server_does_not_start() {
    if !is_possible() {
        return;
    }
    let setup = || Setup::new().server_with("bad", shell(), "sandbox = { processes = 30 }");
    let is_root = nix::unistd::geteuid().is_root();
    let told = limits(&setup(), &[]);
    if told.contains("a control group counts") || !is_root {
        let mut client = setup().start_program();
        client.until_ready("bad");
        let told = run(&mut client, "for i in $(seq 60); do sleep 5 & done 2>&1; echo all");
        assert!(told.contains("fork") && !told.contains("all"), "{told}");
    }
    if is_root && can_hide_groups() {
        let setup = setup();
        assert!(limits(&setup, &WITHOUT_GROUPS).contains("nothing enforces `processes` for root"));
        let nonet = command(setup.folder.path());
        let output = wrapped(&nonet, &WITHOUT_GROUPS).arg("check").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains("counts root's processes only in a control group"), "{told}");
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
    let mut client = Setup::new().server_with("bad", shell(), &keys).start_program();
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
    let mut client = setup.server("bad", serde_json::from_str(&script).unwrap()).start_program();
    client.until_ready("bad");
    let server = fs::read_to_string(&pid_file).unwrap();
    let gateway = client.pid();
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
