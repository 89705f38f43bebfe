//! Tests with a Redis Cluster, and with Sentinels.

use nonet_testing::{RedisServer, free_port};
use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_base::clock::Clock;
use redis::IntoConnectionInfo;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{
    ForgetScope, GatewayStore, JobState, Lifespan, NewRecord, RecordKind, RecordQuota, Share, Store,
    tests::engines::ROOMY,
};

fn address(port: u16) -> ConnectionInfo {
    format!("redis://127.0.0.1:{port}").into_connection_info().expect("an address")
}

fn open(way: RedisTopology) -> GatewayStore {
    GatewayStore::in_redis(way, "nonet", Some("here"), ROOMY, Clock::default())
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn share() -> Share {
    Share { of: "me".into(), bytes: u64::MAX }
}

async fn put_watch(store: &GatewayStore, id: &str) -> bool {
    let watch = NewRecord { id: id.into(), due_ms: Some(5), ..NewRecord::new(RecordKind::Watch, json!({})) };
    store.records.put(watch, RecordQuota::Refuse(99)).await.is_ok()
}

/// Returns three masters, which share the slots.
fn cluster() -> Option<(Vec<RedisServer>, TempDir)> {
    RedisServer::start()?;
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("a path");
    let one = |at: usize| {
        let (file, bus) = (format!("nodes-{at}"), free_port().to_string());
        let of_cluster = ["--cluster-enabled", "yes", "--cluster-config-file", &file, "--cluster-port", &bus];
        let settings = [&["--save", "", "--dir", dir][..], &of_cluster].concat();
        RedisServer::start_with(free_port(), &settings).map(|server| (server, bus))
    };
    let nodes: Vec<_> = (0..3).map(|at| (0..20).find_map(|_| one(at)).expect("it starts")).collect();
    let mut first = nodes[0].0.connect();
    for (at, (node, bus)) in nodes.iter().enumerate() {
        let slots = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)][at];
        let mut own = cmd("CLUSTER");
        own.arg("ADDSLOTSRANGE").arg(slots.0).arg(slots.1).exec(&mut node.connect()).expect("its slots");
        if at > 0 {
            let mut meet = cmd("CLUSTER");
            meet.arg("MEET").arg("127.0.0.1").arg(node.port).arg(bus).exec(&mut first).expect("met");
        }
    }
    let is_whole = |node: &RedisServer| {
        let state: String = cmd("CLUSTER").arg("INFO").query(&mut node.connect()).expect("told");
        state.contains("cluster_state:ok") && state.contains("cluster_known_nodes:3")
    };
    let began = Instant::now();
    while !nodes.iter().all(|(node, _)| is_whole(node)) {
        assert!(began.elapsed() < Duration::from_secs(60), "the nodes did not meet");
        std::thread::sleep(Duration::from_millis(50));
    }
    Some((nodes.into_iter().map(|(node, _)| node).collect(), folder))
}

fn count(nodes: &[RedisServer]) -> Vec<usize> {
    let keys = |node: &RedisServer| cmd("DBSIZE").query(&mut node.connect()).expect("counted");
    nodes.iter().map(keys).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_cluster_keeps_everything_wherever_its_slots_are() {
    let Some((nodes, _folder)) = cluster() else { return };
    // Each store starts from one node, which has a third of the slots.
    for node in &nodes {
        let store = open(RedisTopology::Cluster(vec![address(node.port)]));
        let id = format!("r-{}", node.port);
        let value = Arc::new(json!("x".repeat(3_000_000)));
        let lasts = store.put_result(&id, "", share(), value.clone()).await.expect("kept");
        assert_eq!(lasts, Lifespan::AsConfigured);
        let read = store.text(&id, "").await.expect("readable").expect("it is there");
        assert_eq!(read, value.to_string());
        assert!(put_watch(&store, &id).await);
        let vectors = store.shared_vectors().expect("they are shared");
        let hash = [(node.port % 251) as u8; 16];
        vectors.offer("model", &[(hash, vec![0.5; 4].into())]).await;
        assert!(vectors.read("model", &[hash]).await[0].is_some());
    }
    let all =
        open(RedisTopology::Cluster(vec![address(nodes[0].port)])).records.of_kind(RecordKind::Watch).await;
    assert_eq!(all.expect("readable").len(), 3);
    let before = count(&nodes);
    assert!(before.iter().filter(|keys| **keys > 0).count() > 1, "values are on several nodes: {before:?}");

    let store = open(RedisTopology::Cluster(vec![address(nodes[2].port)]));
    let removed = store.forget_shared(ForgetScope::Kept).await.expect("removed");
    assert!(removed > 10, "{removed}");
    assert!(count(&nodes).iter().sum::<usize>() < 8, "only who runs is left: {:?}", count(&nodes));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_of_a_cluster_is_not_taken_for_a_whole_redis() {
    let Some((nodes, _folder)) = cluster() else { return };
    let mut told = Vec::new();
    for node in &nodes {
        if let Err(error) =
            open(RedisTopology::Node(address(node.port))).records.agenda(&RecordKind::ALL).await
        {
            told.push(error.to_string());
        }
    }
    assert_eq!(told.len(), 2, "one node has the slot: {told:?}");
    assert!(told.iter().all(|error| error.contains("is a node of a Redis Cluster")), "{told:?}");
}

struct Sentinel(Child);

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_name_the_node_and_after_a_failover_another_one() {
    let Some(master) = RedisServer::start() else { return };
    let of_master = master.port.to_string();
    let folder = tempfile::tempdir().expect("a folder");
    // Where the replica stores the data from its master.
    let dir = folder.path().to_str().expect("a path");
    let settings = ["--save", "", "--dir", dir, "--replicaof", "127.0.0.1", &of_master];
    let replica = (0..20).find_map(|_| RedisServer::start_with(free_port(), &settings)).expect("it starts");
    let (file, port) = (folder.path().join("sentinel.conf"), free_port());
    let settings = format!(
        "port {port}\nbind 127.0.0.1\nrequirepass guards\nsentinel monitor shop 127.0.0.1 {of_master} 1\n\
         sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 3000\n"
    );
    fs::write(&file, settings).expect("written");
    let mut command = Command::new("redis-server");
    command.arg(&file).arg("--sentinel").stdout(Stdio::null()).stderr(Stdio::null());
    let _sentinel = Sentinel(command.spawn().expect("it starts"));

    let way = |password: &str| RedisTopology::Sentinel {
        // The first Sentinel does not exist.
        sentinels: vec![address(1), address(port)],
        master: "shop".into(),
        password: Some(password.into()),
    };
    let store = open(way("guards"));
    until("the Sentinel names the node", async || put_watch(&store, "1").await).await;
    assert!(open(way("wrong")).records.agenda(&RecordKind::ALL).await.is_err());
    let sees_replica = || {
        let client = redis::Client::open(
            address(port).set_redis_settings(RedisConnectionInfo::default().set_password("guards")),
        );
        let mut asked = client.and_then(|client| client.get_connection()).expect("connects");
        let replicas: Vec<Value> =
            cmd("SENTINEL").arg("replicas").arg("shop").query(&mut asked).expect("told");
        !replicas.is_empty()
    };
    until("the Sentinel knows the replica", async || sees_replica()).await;
    let has_watch = || cmd("DBSIZE").query::<usize>(&mut replica.connect()).is_ok_and(|keys| keys > 0);
    until("the replica has what was put", async || has_watch()).await;

    drop(master);
    until("the other node is the master", async || put_watch(&store, "2").await).await;
    let due = store.records.due(9, &RecordKind::ALL).await.expect("readable");
    assert_eq!(due.len(), 2, "nothing that was copied is lost");
    let kept = store.put_result("r-1", "", share(), Arc::new(json!(1))).await.expect("kept");
    assert_eq!(kept, Lifespan::AsConfigured);
    let job = crate::JobRow {
        id: "job".into(),
        owner: String::new(),
        label: "a.b".into(),
        state: JobState::Working,
        started_ms: 1,
        leased: true,
    };
    store.put_job(job, share(), None).await.expect("written");
}
