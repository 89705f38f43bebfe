//! SDK clients behind a balancer while every replica is replaced.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{HttpGateway, at_home, installed};

/// Passes connections to the replicas in turn. Knows nothing of HTTP.
fn balance(backends: Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let turn = AtomicUsize::new(0);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let to = {
                let backends = backends.lock().unwrap();
                backends[turn.fetch_add(1, Ordering::Relaxed) % backends.len()].clone()
            };
            let Ok(replica) = TcpStream::connect(to) else { continue };
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), replica.try_clone().unwrap()), (replica, client)]
            {
                std::thread::spawn(move || {
                    let mut bytes = [0; 16 << 10];
                    while let Ok(read @ 1..) = from.read(&mut bytes) {
                        if to.write_all(&bytes[..read]).is_err() {
                            break;
                        }
                    }
                    let _ = (to.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
                });
            }
        }
    });
    address
}

struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

fn redis() -> Option<(Redis, u16)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let mut redis = command.stdout(Stdio::piped()).spawn().ok()?;
    let mut lines = BufReader::new(redis.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("Ready to accept connections")));
    std::thread::spawn(move || lines.for_each(drop));
    Some((Redis(redis), port))
}

/// Starts a replica with one real server that is ready. Returns the folder of its home, and the replica.
fn replica(real: &Path, port: u16, name: &str) -> (tempfile::TempDir, HttpGateway) {
    let folder = tempfile::tempdir().unwrap();
    let server = real.join("node/node_modules/.bin/mcp-server-memory");
    let text = format!(
        "[gateway]\nallow_without_tokens = true\n[cluster]\nredis = \"redis://127.0.0.1:{port}\"\nname = \"{name}\"\n[embedder]\nmodel = \"none\"\n[servers.memory]\ncommand = {server:?}\n\
         env = {{ MEMORY_FILE_PATH = {:?} }}\n",
        folder.path().join("memory.json")
    );
    fs::write(folder.path().join("servers.toml"), text).unwrap();
    let gateway = HttpGateway::start(folder.path());
    let address = gateway.address();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if answer.starts_with("HTTP/1.1 200") {
            return (folder, gateway);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the replica {name} is not ready");
}

#[test]
fn sdk_clients_do_not_notice_that_every_replica_is_replaced() {
    let Some(real) = installed() else { return };
    let Some((_redis, port)) = redis() else { return eprintln!("skipped: there is no `redis-server`") };
    let mut replicas: Vec<_> = ["a", "b", "c"].iter().map(|name| replica(&real, port, name)).collect();
    let backends =
        Arc::new(Mutex::new(replicas.iter().map(|(_, gateway)| gateway.address()).collect::<Vec<_>>()));
    let url = format!("http://{}/mcp", balance(backends.clone()));
    let home = tempfile::tempdir().unwrap();
    let stop = home.path().join("stop");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real");
    let python = real.join("venv/bin/python");
    let start = |program: PathBuf, script: &str, mode: &str| {
        let mut client = at_home(program, home.path());
        client.arg(scripts.join(script)).args([mode, &url]).arg(&stop).env("NONET_REAL", &real);
        let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        (format!("{script} {mode}"), client)
    };
    let clients = [
        start(python.clone(), "steady.py", "legacy"),
        start(python, "steady.py", "auto"),
        start("node".into(), "steady.mjs", "v1"),
        start("node".into(), "steady.mjs", "v2"),
    ];
    std::thread::sleep(Duration::from_secs(3));
    // As an orchestrator does: a new replica becomes ready, new connections go there, the old replica is
    // stopped.
    for (at, old) in replicas.iter_mut().enumerate() {
        let new = replica(&real, port, &format!("new-{at}"));
        backends.lock().unwrap()[at] = new.1.address();
        drop(std::mem::replace(old, new));
        std::thread::sleep(Duration::from_secs(1));
    }
    fs::write(&stop, "").unwrap();
    for (name, client) in clients {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let count: usize = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert!(count > 20, "{name} made {count} calls");
    }
}
