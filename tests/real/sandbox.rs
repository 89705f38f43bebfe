//! Real servers in a sandbox: they work as usual, and code in them can access nothing else.

use std::{fs, os::unix::net::UnixListener};

use serde_json::{Value, json};

use super::{Place, installed};

/// An MCP server in Python that evaluates its input.
const HOSTILE: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    method, result = message.get("method"), {}
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "run", "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}}}]}
    elif method == "tools/call":
        try:
            text = str(eval(message["params"]["arguments"]["code"], {"__builtins__": __builtins__}, {}))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        result = {"content": [{"type": "text", "text": text}]}
    elif method == "server/discover":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

fn sandboxed(place: &Place, more: &str) {
    let file = place.path("servers.toml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replacen("[gateway]", "[gateway]\nsandbox = 'standard'", 1);
    fs::write(&file, format!("{text}\n{more}")).unwrap();
}

fn is_possible(status: &Value) -> bool {
    let servers = status["reach"].as_object().unwrap();
    let weaker = servers.values().find_map(|reach| reach["sandbox"]["weaker"].as_str());
    weaker.inspect(|why| eprintln!("skipped: {why}")).is_none()
}

fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_default().to_string()
}

#[test]
fn well_known_servers_work_in_a_standard_sandbox() {
    let Some(real) = installed() else { return };
    let place = Place::new(real);
    sandboxed(&place, "");
    let output = place.nonet(&["check", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    if !is_possible(&status) {
        return;
    }
    for server in status["servers"].as_array().unwrap() {
        assert_eq!((&server["state"], &server["sandboxed"]), (&json!("ready"), &json!(true)), "{server}");
    }
    let call = |name: &str, params: Value| place.json(&["call", name, &params.to_string(), "--json"]);
    let entity =
        json!({ "entities": [{ "name": "Ada", "entityType": "person", "observations": ["writes code"] }] });
    call("memory.create_entities", entity);
    let check = |name: &str, params: Value, expected: &str| {
        let result = call(name, params);
        assert!(result.to_string().contains(expected), "{name}: {result}");
    };
    check("memory.read_graph", json!({}), "writes code");
    check("everything.get-sum", json!({ "a": 19, "b": 23 }), "42");
    check("filesystem.read_text_file", json!({ "path": place.path("files/hello.txt") }), "Hello from a file");
    check(
        "filesystem.write_file",
        json!({ "path": place.path("files/new.txt"), "content": "new" }),
        "new.txt",
    );
    check("git.git_log", json!({ "repo_path": place.path("repo") }), "The first commit");
    check("git.git_create_branch", json!({ "repo_path": place.path("repo"), "branch_name": "side" }), "side");
    check("time.get_current_time", json!({ "timezone": "Asia/Tokyo" }), "Asia/Tokyo");
    assert_eq!(fs::read_to_string(place.path("files/new.txt")).unwrap(), "new");
    // Its file is in a home folder that belongs only to this server.
    assert!(!place.path("memory.jsonl").exists());
}

#[test]
fn hostile_code_in_a_standard_sandbox_gets_out_nowhere() {
    let Some(real) = installed() else { return };
    let python = real.join("venv/bin/python");
    let place = Place::new(real);
    for folder in ["hostile", ".ssh"] {
        fs::create_dir(place.path(folder)).unwrap();
    }
    fs::write(place.path("hostile/server.py"), HOSTILE).unwrap();
    fs::write(place.path(".ssh/id"), "private-key").unwrap();
    // A socket with a file, like the session's D-Bus, and an abstract one without a file.
    let _bus = UnixListener::bind(place.path("bus")).unwrap();
    let name = format!("nonet-test-{}", std::process::id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name);
    let _abstract = UnixListener::bind_addr(&address.unwrap()).unwrap();
    sandboxed(
        &place,
        &format!("[servers.hostile]\ncommand = {python:?}\nargs = [{:?}]\n", place.path("hostile/server.py")),
    );
    let output = place.nonet(&["check", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    if !is_possible(&status) {
        return;
    }
    let check = |code: &str, expected: &[&str]| {
        let told =
            text(&place.json(&["call", "hostile.run", &json!({ "code": code }).to_string(), "--json"]));
        assert!(expected.iter().any(|text| told.contains(text)), "{code}: {told}");
    };
    check("1 + 1", &["2"]);
    check("open(__import__('os').path.expanduser('~/.ssh/id')).read()", &["FileNotFoundError"]);
    check(&format!("open({:?}).read()", place.path("servers.toml")), &["FileNotFoundError"]);
    check(
        "__import__('os').listdir(__import__('os').path.expanduser('~/.local/state/nonet'))",
        &["FileNotFoundError"],
    );
    // The server cannot even change itself.
    check(&format!("open({:?}, 'w')", place.path("hostile/server.py")), &["OSError", "PermissionError"]);
    let socket = "__import__('socket')";
    let unix = format!("{socket}.socket({socket}.AF_UNIX)");
    check(&format!("{unix}.connect({:?})", place.path("bus")), &["FileNotFoundError", "PermissionError"]);
    check(&format!("{unix}.connect('\\0{name}')"), &["PermissionError", "ConnectionRefusedError"]);
    let call = |number: &str| {
        format!(
            "(lambda c: (c.syscall({number}), __import__('ctypes').get_errno()))(__import__('ctypes').CDLL(None, use_errno=True))"
        )
    };
    // ptrace(PTRACE_TRACEME), unshare(CLONE_NEWUSER), bpf.
    let numbers = if cfg!(target_arch = "x86_64") {
        ["101, 0", "272, 0x10000000", "321, 0"]
    } else {
        ["117, 0", "97, 0x10000000", "280, 0"]
    };
    for number in numbers {
        check(&call(number), &["(-1, 1)"]);
    }
    check("[p for p in __import__('os').listdir('/proc') if p.isdigit()]", &["['1', '2']"]);
    check("open('/proc/1/environ').read()", &["PermissionError"]);
    check(&format!("__import__('os').kill({}, 0)", std::process::id()), &["ProcessLookupError"]);
    check("__import__('os').mkdir('/dev/shm/a')", &["None"]);
    check(
        "__import__('os').mknod('/tmp/disk', 0o60600, __import__('os').makedev(254, 0))",
        &["PermissionError"],
    );
    check("open('/dev/vda', 'rb')", &["FileNotFoundError"]);
}
