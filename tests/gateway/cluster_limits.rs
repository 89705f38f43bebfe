//! Limits shared by all replicas, and differences between replicas.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nonet_testing::RedisServer;
use serde_json::json;

use crate::{
    client::command,
    inside::serve_script,
    setup::{Setup, eventually},
    web::{WebClient, http},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_stated_concurrency_of_a_remote_server_holds_for_all_replicas() {
    let Some(redis) = RedisServer::start() else { return };
    let script = json!({ "tools": [{ "name": "wait", "on": { "delay_ms": 1_000, "text": "waited" } }] });
    let (address, _server) = serve_script("127.0.0.1:0", script).await;
    let keys = format!("url = 'http://{address}/mcp'\nmax_concurrency = 1");
    let calls = tokio::task::spawn_blocking(move || {
        let replica = |name| Setup::new().toml(&redis.toml(name)).server_of("web", &keys).serve_program();
        let sites = [replica("one"), replica("two"), replica("three")];
        for site in &sites {
            WebClient::new(&site.address, "/mcp").until_ready("web");
        }
        let began = Instant::now();
        thread::scope(|scope| {
            for site in &sites {
                scope.spawn(|| {
                    let result = WebClient::new(&site.address, "/mcp").call("web__wait", json!({}));
                    assert_eq!(result["content"][0]["text"], "waited", "{result}");
                });
            }
        });
        let took = began.elapsed();
        // A plain call leaves no slot behind.
        let keys = redis.keys("*slots*");
        (took, keys)
    });
    let (took, keys) = calls.await.expect("no panic");
    assert!(took >= Duration::from_millis(3_000), "three calls of a second, one at a time: {took:?}");
    assert!(keys.len() <= 1, "{keys:?}");
}

#[test]
fn check_and_metrics_tell_what_differs_between_replicas() {
    let Some(redis) = RedisServer::start() else { return };
    let tools = json!({ "tools": [{ "name": "echo" }] });
    let one = Setup::new().toml(&redis.toml("one")).server("shop", tools.clone()).serve();
    WebClient::new(&one.address, "/mcp").until_ready("shop");
    let metrics = http(&one.address, "GET", "/metrics", &[], "").body;
    for line in [
        "nonet_cluster_replicas{state=\"running\"} 1",
        "nonet_cluster_other_config 0",
        "nonet_cluster_redis_up 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }

    let two = Setup::new().toml(&redis.toml("two")).server("shop", tools);
    two.write();
    let check = |arguments: &[&str]| {
        let output = command(two.folder.path()).args(arguments).output().expect("nonet runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, told) = check(&["check"]);
    let expected =
        format!("[cluster]: the replica one at http://{} uses a different servers.toml", one.address);
    assert!(told.contains(&expected) && told.contains("cluster: 1 replica running"), "{told}");
    assert_eq!(code, Some(1));
    let (_, told) = check(&["check", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&told).expect("it is JSON");
    assert_eq!(report["cluster"]["replicas"][0]["other_config"], true, "{report}");
    drop(redis);
    let (code, told) = check(&["check"]);
    assert!(told.contains("[cluster]: the replicas' shared data cannot be read"), "{told}");
    assert!(!told.contains("replicas running"), "unknown is not none: {told}");
    assert_eq!(code, Some(1));
}

/// Creates a certificate for this machine and its signing certificate. None without `openssl`.
fn certificates(folder: &Path) -> Option<()> {
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").expect("written");
    let steps = [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem",
    ];
    for step in steps {
        let mut openssl = Command::new("openssl");
        let made = openssl.args(step.split(' ')).current_dir(folder).output().ok()?;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    Some(())
}

#[test]
fn redis_over_tls_has_to_show_a_certificate_that_is_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    if RedisServer::start().is_none() || certificates(folder.path()).is_none() {
        return eprintln!("SKIPPED: there is no redis-server, or no openssl");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let mut redis = Command::new("redis-server");
    redis.args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    redis.args(["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem", "--tls-ca-cert-file", "ca.pem"]);
    redis.args(["--tls-auth-clients", "no", "--requirepass", "pw"]).current_dir(folder.path());
    let mut redis = redis.stdout(Stdio::null()).spawn().expect("Redis starts");
    eventually("Redis listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());

    let toml = format!("[cluster]\nredis = \"rediss://:${{REDIS_PASSWORD}}@localhost:{port}\"\n");
    let setup = Setup::new().toml(&toml).server("shop", json!({ "tools": [{ "name": "echo" }] }));
    setup.write();
    let check = |trusted: &str| {
        let mut nonet = command(setup.folder.path());
        nonet.env("REDIS_PASSWORD", "pw").env("SSL_CERT_FILE", folder.path().join(trusted));
        let output = nonet.arg("check").output().expect("nonet runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (trusted, other) = (check("ca.pem"), check("nobody.pem"));
    let _ = redis.kill();
    let _ = redis.wait();
    assert!(trusted.contains("cluster: 0 replicas running"), "{trusted}");
    assert!(!trusted.contains("[cluster]:"), "{trusted}");
    assert!(other.contains("[cluster]: the replicas' shared data cannot be read"), "{other}");
}
