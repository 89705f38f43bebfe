//! Which source answers a command: a running gateway, or else the last lists on disk; and how `status`,
//! `logs`, completions and the man page use the same files.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually, logged},
};

/// Returns two servers that log their messages.
fn shops() -> Setup {
    let setup = Setup::new();
    let (shop, bank) = (setup.path("shop.log"), setup.path("bank.log"));
    let item =
        json!({ "type": "object", "properties": { "item": { "type": "string" } }, "required": ["item"] });
    let buy =
        json!({ "name": "buy", "description": "Buys a thing", "input_schema": item, "on": { "echo": true } });
    let pay =
        json!({ "name": "pay", "description": "Pays a bill", "on": { "delay_ms": 300, "text": "paid" } });
    setup
        .server(
            "shop",
            json!({ "tools": [buy, { "name": "hang", "on": { "hang": true } }], "message_log": shop }),
        )
        .server("bank", json!({ "tools": [pay], "message_log": bank, "stderr_lines": ["the bank is open"] }))
}

/// Returns how often a server was started.
fn starts(folder: &Path, server: &str) -> usize {
    let messages = logged(&folder.join(format!("{server}.log")));
    messages.iter().filter(|message| message["method"] == "tools/list").count()
}

fn run_in(folder: &Path, arguments: &[&str]) -> Output {
    command(folder).args(arguments).output().expect("nonet runs")
}

fn run(setup: &Setup, arguments: &[&str]) -> Output {
    run_in(setup.folder.path(), arguments)
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", stdout(output), stderr(output)))
}

#[test]
fn the_last_lists_answer_without_starting_a_server() {
    let setup = shops();
    setup.write();
    let folder = setup.folder.path();
    let first = run(&setup, &["tools", "--json"]);
    assert!(!stderr(&first).contains("last lists"), "{}", stderr(&first));
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (1, 1));
    for arguments in
        [&["tools", "--json"][..], &["search", "pays a bill"], &["get", "bank.pay"], &["get", "nothing"]]
    {
        let output = run(&setup, arguments);
        let told = stderr(&output);
        assert!(
            told.contains("from the last lists (up to ") && told.contains("--refresh"),
            "{arguments:?}: {told}"
        );
        assert!(!stdout(&output).contains("stopped"), "{arguments:?}: {}", stdout(&output));
    }
    assert_eq!(json(&run(&setup, &["tools", "--json"])), json(&first));
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (1, 1));
    let refreshed = run(&setup, &["tools", "--json", "--refresh"]);
    assert_eq!(json(&refreshed), json(&first));
    assert!(!stderr(&refreshed).contains("last lists"), "{}", stderr(&refreshed));
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (2, 2));
}

#[test]
fn a_list_that_is_old_or_missing_is_asked_for() {
    let setup = shops();
    setup.write();
    run(&setup, &["tools"]);
    let lists =
        || fs::read_dir(setup.path("cache/lists")).expect("a folder").flatten().map(|entry| entry.path());
    let of = |server: &str| {
        let mut lists = lists();
        lists.find(|list| list.file_name().is_some_and(|name| name.to_string_lossy().starts_with(server)))
    };
    let shop = fs::File::options().append(true).open(of("shop").expect("a list")).expect("it is there");
    shop.set_modified(nonet_base::clock::system_time() - Duration::from_secs(8 * 86_400)).expect("a time");
    let output = run(&setup, &["search", "pays a bill"]);
    assert!(stdout(&output).contains("bank.pay"), "{}", stdout(&output));
    let folder = setup.folder.path();
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (2, 1));
    // The same list again still counts as fresh.
    run(&setup, &["tools"]);
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (2, 1));
    fs::remove_file(of("bank").expect("a list")).expect("it is there");
    run(&setup, &["tools"]);
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (2, 2));
}

#[test]
fn a_call_starts_the_one_server_that_it_needs() {
    let setup = shops();
    setup.write();
    let folder = setup.folder.path();
    // The name contains the server, so no list is needed.
    let output = run(&setup, &["call", "shop.buy", "{\"item\": \"tea\"}"]);
    assert_eq!(stdout(&output).trim(), "{\"item\":\"tea\"}", "{}", stderr(&output));
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (1, 0));
    run(&setup, &["tools"]);
    let output = run(&setup, &["call", "pay"]);
    assert_eq!((stdout(&output).trim(), stderr(&output)), ("paid", ""));
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (1, 2));
    let output = run(&setup, &["call", "gateway.status"]);
    assert!(output.status.success() && stdout(&output).contains("uptime_s"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("stopped"), "they were only not started: {}", stdout(&output));
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (1, 2));
    // Its list is fresh and lacks the tool.
    let output = run(&setup, &["call", "bank.rob"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("bank.rob") && !stderr(&output).contains("is down"),
        "{}",
        stderr(&output)
    );
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (1, 2));
}

#[test]
fn a_server_that_failed_a_moment_ago_is_not_waited_for() {
    let lines = ["Traceback:", "KeyError: 'SHOP_KEY'"];
    let setup = shops().server("bad", json!({ "exit_at_start": 3, "stderr_lines": lines }));
    setup.write();
    let first = run(&setup, &["tools"]);
    let told: Vec<&str> = stderr(&first).lines().filter(|line| line.contains("bad")).collect();
    assert_eq!(told.len(), 1, "once, in one line: {}", stderr(&first));
    assert!(told[0].contains("variable") && told[0].contains("KeyError: 'SHOP_KEY'"), "{told:?}");
    let second = run(&setup, &["tools"]);
    let told = stderr(&second);
    assert!(told.contains("not available a moment ago: bad") && !told.contains("KeyError"), "{told}");
    let status = json(&run(&setup, &["status", "--json"]));
    let bad = &status["servers"][0];
    assert!(bad["last_error"].as_str().is_some_and(|error| error.contains("SHOP_KEY")), "{status}");
    // A call always retries, and an edit of the file may have fixed the server.
    let called = run(&setup, &["call", "bad.anything"]);
    assert!(stderr(&called).contains("`bad` is down: "), "{}", stderr(&called));
    setup.write();
    let third = run(&setup, &["tools", "--verbose"]);
    assert!(stderr(&third).contains("its stderr ends with"), "{}", stderr(&third));
}

#[test]
fn a_first_start_is_told_in_a_pipe_too() {
    let setup = Setup::new().server("slow", json!({ "start_delay_ms": 700, "tools": [{ "name": "look" }] }));
    setup.write();
    let output = run(&setup, &["tools"]);
    assert!(stderr(&output).contains("nonet: starting 1 server (slow)"), "{}", stderr(&output));
}

#[test]
fn the_gateway_that_runs_answers() {
    let profile = "[profiles.reader]\ncategories = ['bank']";
    let site = shops().toml(profile).serve_program();
    let folder = site.folder.path();
    eventually("both servers are ready", || {
        let status = json(&run_in(folder, &["status", "--json"]));
        let servers = status["servers"].as_array()?;
        (servers.len() == 2 && servers.iter().all(|server| server["state"] == "ready")).then_some(())
    });
    let tools = run_in(folder, &["tools", "--json"]);
    let listed = json(&tools)["tools"].as_array().expect("a list").clone();
    let names = listed.iter().filter(|tool| tool["server"] != "gateway").map(|tool| tool["name"].as_str());
    let names: Vec<&str> = names.flatten().collect();
    assert_eq!((&names[..], stderr(&tools)), (&["bank.pay", "shop.buy", "shop.hang"][..], ""));
    let found = json(&run_in(folder, &["search", "pays a bill", "--json", "--explain", "--limit", "1"]));
    assert_eq!(found["results"][0]["name"], "bank.pay", "{found}");
    assert!(found["results"][0]["explain"].is_object(), "{found}");
    assert_eq!(json(&run_in(folder, &["get", "buy"]))["name"], "shop.buy");
    let called = run_in(folder, &["call", "shop.buy", "{\"item\": \"tea\"}", "--select", ".item"]);
    assert_eq!((stdout(&called).trim(), stderr(&called)), ("tea", ""));
    let refused = run_in(folder, &["call", "shop.buy"]);
    assert_eq!((refused.status.code(), stdout(&refused)), (Some(1), ""));
    assert!(stderr(&refused).contains("\"item\" is a required property"), "{}", stderr(&refused));
    let hidden = run_in(folder, &["--profile", "reader", "call", "shop.buy", "{\"item\": \"tea\"}"]);
    assert!(!hidden.status.success(), "{}", stdout(&hidden));
    // The same over HTTP, also from a folder without any configuration.
    let url = format!("http://{}", site.address);
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let mut remote = Command::new(env!("CARGO_BIN_EXE_nonet"));
    remote.current_dir(elsewhere.path()).env("HOME", elsewhere.path()).env_remove("NONET_CONFIG");
    remote.env("NONET_TOKEN", crate::web::OWN_TOKEN);
    let remote =
        remote.args(["call", "shop.buy", "{\"item\": \"far\"}", "--url", &url]).output().expect("nonet runs");
    assert_eq!(stdout(&remote).trim(), "{\"item\":\"far\"}", "{}", stderr(&remote));
    assert_eq!((starts(folder, "shop"), starts(folder, "bank")), (1, 1));
    let nobody = run_in(folder, &["tools", "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(stderr(&nobody).contains("nonet serve --http"), "{}", stderr(&nobody));
}

#[test]
fn a_call_that_is_interrupted_is_cancelled_in_the_gateway_that_runs() {
    let site = shops().serve_program();
    let folder = site.folder.path();
    let hang = RunningCommand::new(command(folder).args(["call", "shop.hang"]).stdout(Stdio::null()));
    let sees = |method: &str| {
        let messages = logged(&folder.join("shop.log"));
        messages.iter().any(|message| message["method"] == method).then_some(())
    };
    eventually("the call has arrived", || sees("tools/call"));
    assert_eq!(hang.interrupt(), Some(130));
    eventually("the server is told", || sees("notifications/cancelled"));
}

/// A command that runs until interrupted. A failed test leaves no process behind.
pub struct RunningCommand(Child);

impl RunningCommand {
    fn new(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("nonet runs"))
    }

    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let stdout = self.0.stdout.take().expect("it is piped");
        BufReader::new(stdout).lines().map_while(Result::ok)
    }

    /// Sends Ctrl-C. Returns the exit code.
    pub fn interrupt(mut self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("a process id"));
        kill(pid, Signal::SIGINT).expect("it runs");
        eventually("nonet ends", || self.0.try_wait().expect("it can be waited for")).code()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn status_tells_of_the_gateway_that_runs_or_of_the_last_lists() {
    let site = shops().serve_program();
    // The folder remains after the gateway is gone.
    let kept = site.folder.clone();
    let folder = kept.path().to_path_buf();
    let status = eventually("both servers are ready", || {
        let status = json(&run_in(&folder, &["status", "--json"]));
        (status["servers"][1]["state"] == "ready" && status["servers"][0]["state"] == "ready")
            .then_some(status)
    });
    assert_eq!((&status["running"], &status["pid"]), (&json!(true), &json!(site.pid())));
    let mut client = Client::over(site.folder.clone(), &["connect"], &[]);
    client.initialize("2025-06-18", json!({}));
    let task = client.execute("gateway.background_run", json!({ "name": "shop.hang" }));
    let task = crate::setup::json_of(&task)["task_id"].as_str().expect("a handle").to_owned();
    let output = run_in(&folder, &["status"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for part in [
        "up for",
        "2 servers, 3 tools",
        "1 client,",
        "clients speak: test 2025-06-18",
        "1 task running",
        &task,
        "shop.hang",
    ] {
        assert!(stdout(&output).contains(part), "{part}: {}", stdout(&output));
    }
    let mut follow =
        RunningCommand::new(command(&folder).args(["status", "--follow", "--json"]).stdout(Stdio::piped()));
    let mut lines = follow.lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().expect("a line")).expect("JSON");
    assert_eq!(next()["running"], true);
    drop(client);
    drop(site);
    let mut gone = next();
    while gone["running"] == true {
        gone = next();
    }
    assert_eq!(gone["servers"][0]["tools"], 1, "{gone}");
    assert_eq!(follow.interrupt(), Some(130));
}

#[test]
fn a_status_that_is_followed_can_be_interrupted_while_it_asks() {
    let site = shops().serve_program();
    let folder = site.folder.path();
    let mut command = command(folder);
    let mut follow =
        RunningCommand::new(command.args(["status", "--follow", "--json"]).stdout(Stdio::piped()));
    assert!(follow.lines().next().is_some_and(|line| line.contains("\"pid\"")));
    let pid = Pid::from_raw(i32::try_from(site.pid()).expect("a process id"));
    kill(pid, Signal::SIGSTOP).expect("it runs");
    // The command polls each second, and now waits for an answer.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(follow.interrupt(), Some(130));
}

#[test]
fn without_a_gateway_status_says_what_is_known() {
    let keys = "command = 'x'\nenv = { KEY = '${NONET_TEST_NEVER_SET}' }";
    let setup = shops().server_with("off", json!({}), "enabled = false").server_of("lost", keys);
    setup.write();
    let output = run(&setup, &["status"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("No shared gateway is running") && stdout(&output).contains("never"),
        "{}",
        stdout(&output)
    );
    run(&setup, &["tools"]);
    let status = json(&run(&setup, &["status", "--json"]));
    assert_eq!((&status["running"], &status["disabled"]), (&json!(false), &json!(["off"])));
    assert_eq!((&status["servers"][0]["name"], &status["servers"][0]["tools"]), (&json!("bank"), &json!(1)));
    let lost = &status["servers"][2];
    assert_eq!((&lost["name"], &lost["state"]), (&json!("lost"), &json!("needs_config")));
    assert!(lost["last_error"].as_str().is_some_and(|why| why.contains("NONET_TEST_NEVER_SET")), "{status}");
    assert!(status["servers"][0]["listed_s"].as_u64().is_some_and(|age| age < 60), "{status}");
}

#[test]
fn logs_show_what_was_written_of_a_server() {
    let setup = shops();
    setup.write();
    let nothing = run(&setup, &["logs"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(stderr(&nothing).contains("--log-file"), "{}", stderr(&nothing));
    let shared = shops().gateway("shared = true\nshared_grace = '200ms'");
    shared.write();
    let folder = std::sync::Arc::new(shared.folder);
    // Without NONET_LOG, as for most users.
    let mut client = Client::over(folder.clone(), &[], &[("NONET_LOG", "")]);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("bank");
    let of_bank = eventually("the log is written", || {
        let output = run_in(folder.path(), &["logs", "bank"]);
        (output.status.success() && stdout(&output).contains("ready")).then(|| stdout(&output).to_owned())
    });
    assert!(of_bank.contains("stderr: the bank is open") && !of_bank.contains("server=shop"), "{of_bank}");
    let all = run_in(folder.path(), &["logs", "--json"]);
    for line in stdout(&all).lines() {
        assert!(serde_json::from_str::<Value>(line).expect("JSON")["text"].is_string(), "{line}");
    }
    assert!(stdout(&all).contains("server=shop"), "{}", stdout(&all));
    let one = run_in(folder.path(), &["logs", "-n", "1"]);
    assert_eq!(stdout(&one).lines().count(), 1, "{}", stdout(&one));
    let mut follow = command(folder.path());
    let mut follow =
        RunningCommand::new(follow.args(["logs", "bank", "--follow", "-n", "0"]).stdout(Stdio::piped()));
    let mut lines = follow.lines();
    // Not before its first poll.
    std::thread::sleep(Duration::from_millis(500));
    client.execute("bank.pay", json!({}));
    let line = lines.next().expect("a line");
    assert!(line.contains("tool=bank.pay"), "{line}");
    assert_eq!(follow.interrupt(), Some(130));
    let stranger = run_in(folder.path(), &["logs", "nobody"]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(stderr(&stranger).contains("nobody"), "{}", stderr(&stranger));
}

#[test]
fn completions_know_clients_servers_and_tools() {
    let setup = shops();
    setup.write();
    run(&setup, &["tools"]);
    let complete = |words: &[&str]| {
        let mut shell = command(setup.folder.path());
        let config = setup.path("servers.toml");
        let output = shell
            .env("NONET_COMPLETE", "fish")
            .arg("--")
            .arg("nonet")
            .arg("--config")
            .arg(config)
            .args(words)
            .output();
        stdout(&output.expect("nonet runs"))
            .lines()
            .map(|line| line.split('\t').next().unwrap_or(line).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(complete(&["call", "shop."]), ["shop.buy", "shop.hang"]);
    assert_eq!(complete(&["get", "bank"]), ["bank.pay"]);
    assert_eq!(complete(&["logs", "b"]), ["bank"]);
    assert_eq!(complete(&["search", "x", "--category", "sh"]), ["shop"]);
    assert_eq!(complete(&["install", "claude"]), ["claude-desktop", "claude-code"]);
    for (shell, part) in
        [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --"), ("powershell", "Register-")]
    {
        let script = run(&setup, &["completions", shell]);
        assert!(
            stdout(&script).contains(part) && stdout(&script).contains("NONET_COMPLETE"),
            "{}",
            stdout(&script)
        );
    }
    if Path::new("/bin/bash").exists() {
        let words = "source <(\"$0\" completions bash); COMP_WORDS=(nonet call ba); COMP_CWORD=2; COMP_TYPE=9; \
                     _clap_complete_nonet nonet ba call; echo \"${COMPREPLY[*]}\"";
        // A file in the current folder that is neither named nor trusted completes nothing, and nothing is
        // said of it.
        for (named, expected) in [("servers.toml", "bank.pay"), ("", "")] {
            let mut bash = Command::new("/bin/bash");
            let bash = bash.current_dir(setup.folder.path()).env("HOME", setup.folder.path());
            let bash = bash.env_remove("NONET_CONFIG").env_remove("XDG_CONFIG_HOME");
            let bash = bash.envs((!named.is_empty()).then_some(("NONET_CONFIG", named)));
            let output = bash.args(["-c", words, env!("CARGO_BIN_EXE_nonet")]).output().expect("bash runs");
            assert_eq!((stdout(&output).trim(), stderr(&output)), (expected, ""), "{named}");
        }
    }
}

#[test]
fn every_page_that_the_man_page_names_exists() {
    let setup = Setup::new();
    let folder = setup.path("man1");
    assert!(run(&setup, &["man", "--dir", folder.to_str().expect("UTF-8")]).status.success());
    let page = run(&setup, &["man"]);
    let names = stdout(&page).lines().filter_map(|line| line.strip_suffix("(1)"));
    let names: Vec<String> = names.map(|name| name.replace("\\-", "-")).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(folder.join(format!("{name}.1")).exists(), "{name}");
        let path: Vec<&str> = std::iter::once("man").chain(name.split('-').skip(1)).collect();
        let page = run(&setup, &path);
        let title = format!(".TH {name} 1");
        assert!(
            stdout(&page).replace("\\-", "-").contains(&title),
            "{name}: {}{}",
            stdout(&page),
            stderr(&page)
        );
    }
    assert!(folder.join("nonet-secret-set.1").exists());
    assert_eq!(run(&setup, &["man", "fly"]).status.code(), Some(2));
}

#[test]
fn a_table_is_as_wide_as_the_terminal_and_ctrl_c_leaves_it_clean() {
    let setup = Setup::new().server("slow", json!({ "never_answer": true }));
    setup.write();
    let terminal = Terminal::new();
    let mut nonet = command(setup.folder.path());
    let child = terminal.spawn(nonet.args(["tools", "--refresh"]).env("TERM", "xterm-256color"));
    let mut seen = String::new();
    eventually("the bar is there", || {
        seen.push_str(&terminal.read());
        seen.contains("starting servers").then_some(())
    });
    assert_eq!(child.interrupt(), Some(130));
    seen.push_str(&terminal.read());
    let last = seen.rfind("starting servers").expect("it was there");
    assert!(
        seen[last..].ends_with("\r\u{1b}[2K\r\n"),
        "the line is wiped, and the prompt gets one of its own: {:?}",
        &seen[last..]
    );
    let long =
        "Reads every line of every file that is named, and gives them all back in one long answer to read";
    let tools: Vec<Value> =
        (0..5).map(|n| json!({ "name": format!("read_number_{n}"), "description": long })).collect();
    let setup = Setup::new().server("files", json!({ "tools": tools }));
    setup.write();
    for (variables, coloured) in [(&[("NO_COLOR", "1")][..], false), (&[], true)] {
        let terminal = Terminal::new();
        let mut nonet = command(setup.folder.path());
        nonet.args(["search", "read lines"]).env_remove("NO_COLOR").env("TERM", "xterm-256color");
        nonet.envs(variables.iter().copied());
        let mut child = terminal.spawn(&mut nonet);
        let began = Instant::now();
        let mut seen = String::new();
        while child.0.try_wait().expect("it can be waited for").is_none()
            && began.elapsed() < crate::setup::PATIENCE
        {
            seen.push_str(&terminal.read());
        }
        seen.push_str(&terminal.read());
        assert_eq!(seen.contains("\u{1b}[1m"), coloured, "{seen:?}");
        let table: Vec<&str> =
            seen.lines().filter(|line| line.contains("read_number") || line.contains("one long")).collect();
        assert!(!table.is_empty(), "{seen}");
        for line in table {
            let line = ["\u{1b}[33m", "\u{1b}[0m", "\u{1b}[2K", "\r"]
                .iter()
                .fold(line.to_owned(), |line, code| line.replace(code, ""));
            assert!(line.trim_end().chars().count() <= 80, "{line:?}");
        }
    }
}

/// A terminal of 80 columns.
pub struct Terminal {
    ours: fs::File,
    theirs: fs::File,
}

impl Terminal {
    pub fn new() -> Self {
        let size = nix::pty::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = nix::pty::openpty(Some(&size), None).expect("a terminal");
        Self { ours: pair.master.into(), theirs: pair.slave.into() }
    }

    /// Runs a command that writes to the terminal and reads nothing.
    pub fn spawn(&self, command: &mut Command) -> RunningCommand {
        let end = || Stdio::from(self.theirs.try_clone().expect("another handle"));
        RunningCommand::new(command.stdout(end()).stderr(end()))
    }

    /// Runs a command whose questions are answered with a text. Returns its exit code and everything on the
    /// terminal.
    pub fn answer(command: &mut Command, typed: &str) -> (Option<i32>, String) {
        let terminal = Self::new();
        let end = || Stdio::from(terminal.theirs.try_clone().expect("another handle"));
        (&terminal.ours).write_all(typed.as_bytes()).expect("it takes the text");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("nonet runs");
        let mut child = RunningCommand(child);
        let mut seen = String::new();
        let code = eventually("the command ends", || {
            seen.push_str(&terminal.read());
            child.0.try_wait().expect("it can be waited for")
        });
        (code.code(), seen + &terminal.read())
    }

    /// Returns the output since the last read.
    pub fn read(&self) -> String {
        use std::{io::Read, os::fd::AsFd};

        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut all = Vec::new();
        let mut bytes = [0; 4096];
        while poll(&mut [PollFd::new(self.ours.as_fd(), PollFlags::POLLIN)], PollTimeout::from(50_u8))
            .is_ok_and(|n| n > 0)
        {
            match (&self.ours).read(&mut bytes) {
                Ok(read) if read > 0 => all.extend_from_slice(&bytes[..read]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// In the examples of `--help` and of the README, the preceding search ranks the called tool first.
#[test]
fn the_search_of_each_example_finds_what_its_call_calls() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tools.jsonl");
    let recorded = fs::read_to_string(recorded).expect("it is there");
    let recorded: Vec<Value> =
        recorded.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let setup = ["filesystem", "git", "memory", "time"].into_iter().fold(Setup::new().by_meaning(""), |setup, name| {
        let tools = recorded.iter().filter(|tool| tool["server"] == name).map(|tool| {
            json!({ "name": tool["name"], "description": tool["description"], "input_schema": tool["input_schema"] })
        });
        setup.server(name, json!({ "tools": tools.collect::<Vec<_>>() }))
    });
    setup.write();
    let help = run(&setup, &["--help"]);
    let readme =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).expect("it is there");
    for text in [stdout(&help), &readme] {
        let (_, rest) = text.split_once("search \"").expect("an example");
        let (query, rest) = rest.split_once('"').expect("its end");
        let (_, rest) = rest.split_once(" call ").expect("a call after it");
        let called = rest.split(' ').next().expect("a name");
        let found = json(&run(&setup, &["search", query, "--json", "--limit", "1"]));
        assert_eq!(found["results"][0]["name"], called, "{query}: {found}");
    }
}

#[test]
fn an_error_of_the_system_is_said_once() {
    let setup = Setup::new();
    setup.write();
    fs::write(setup.path("file"), "no folder").expect("writable");
    let output =
        command(setup.folder.path()).arg("forget").env("XDG_STATE_HOME", setup.path("file")).output();
    let output = output.expect("nonet runs");
    assert!(!output.status.success());
    assert_eq!(stderr(&output).matches("os error").count(), 1, "{}", stderr(&output));
    let mut nonet = Command::new(env!("CARGO_BIN_EXE_nonet"));
    nonet.env("HOME", setup.folder.path()).arg("--config").arg(setup.folder.path()).arg("tools");
    let unreadable = nonet.output().expect("nonet runs");
    assert_eq!(
        stderr(&unreadable).matches("it is not a file").count(),
        1,
        "the cause is there: {}",
        stderr(&unreadable)
    );
}
