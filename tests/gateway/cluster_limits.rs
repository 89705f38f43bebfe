//! What holds for all replicas together, and what tells them apart.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    client::command,
    cluster::RedisServer,
    inside::serve_script,
    setup::Setup,
    web::{WebClient, http},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_stated_concurrency_of_a_remote_server_holds_for_all_replicas() {
    let Some(redis) = RedisServer::start() else { return };
    let script = json!({ "tools": [{ "name": "wait", "on": { "delay_ms": 1_000, "text": "waited" } }] });
    let (address, _server) = serve_script("127.0.0.1:0", script).await;
    let keys = format!("url = 'http://{address}/mcp'\nmax_concurrency = 1");
    let calls = tokio::task::spawn_blocking(move || {
        let replica = |name| Setup::new().toml(&redis.toml(name)).server_of("web", &keys).serve();
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
        // A plain call leaves nothing behind.
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
        format!("[cluster]: the replica one at http://{} goes by another servers.toml", one.address);
    assert!(told.contains(&expected) && told.contains("cluster: 1 replica running"), "{told}");
    assert_eq!(code, Some(1));
    let (_, told) = check(&["check", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&told).expect("it is JSON");
    assert_eq!(report["cluster"]["replicas"][0]["other_config"], true, "{report}");
    drop(redis);
    let (code, told) = check(&["check"]);
    assert!(told.contains("[cluster]: what the replicas share cannot be read"), "{told}");
    assert_eq!(code, Some(1));
}
