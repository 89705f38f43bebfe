//! Vectors that replicas share.

use nonet_testing::RedisServer;
use std::time::Instant;

use redis::{Commands, Connection};

use super::*;

const MODEL: &str = "a-model";

fn open(server: &RedisServer) -> VectorKeys {
    VectorKeys::new(Arc::new(RedisLink::new(server.address())), "nonet", Clock::default())
}

fn vectors(numbers: std::ops::Range<u32>) -> Vec<(VectorKey, Arc<[f32]>)> {
    let key = |number: u32| -> VectorKey {
        Sha256::digest(number.to_le_bytes()).first_chunk().copied().unwrap_or_default()
    };
    let vector = |number: u32| (0..384).map(|at| 1.0 / (number * 384 + at + 1) as f32).collect();
    numbers.map(|number| (key(number), vector(number))).collect()
}

fn keys(vectors: &[(VectorKey, Arc<[f32]>)]) -> Vec<VectorKey> {
    vectors.iter().map(|(key, _)| *key).collect()
}

/// Returns the number of vectors in Redis.
fn count(redis: &mut Connection) -> usize {
    let keys: Vec<String> = redis.keys("nonet:vector:*").expect("readable");
    keys.iter().filter(|key| !key.ends_with(":times")).count()
}

/// Returns the number of commands that Redis has processed.
fn commands(redis: &mut Connection) -> u64 {
    let text: String = redis::cmd("INFO").arg("stats").query(redis).expect("readable");
    let line = text.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.and_then(|number| number.trim().parse().ok()).expect("a number")
}

#[tokio::test]
async fn what_one_replica_has_made_another_reads_to_the_bit() {
    let Some(server) = RedisServer::start() else { return };
    let (here, other) = (open(&server), open(&server));
    let all = vectors(0..3_000);
    assert_eq!(here.read(MODEL, &keys(&all)).await, vec![None; 3_000]);
    here.offer(MODEL, &all[..2_000]).await;
    let found = other.read(MODEL, &keys(&all)).await;
    for (at, ((_, expected), found)) in all.iter().zip(&found).enumerate() {
        assert_eq!(found.as_ref(), (at < 2_000).then_some(expected), "{at}");
    }
    assert_eq!(other.read("another", &keys(&all[..9])).await, vec![None; 9], "each model has its own");
    let mut redis = server.connect();
    let life = u64::try_from(LIFE.as_millis()).expect("small");
    for key in redis.keys::<_, Vec<String>>("*").expect("readable") {
        assert!(key.starts_with("nonet:vector:{a"), "{key}");
        let left: u64 = redis.pttl(&key).expect("readable");
        assert!(left <= life && left > life - 600_000, "{key}: {left}");
    }
}

#[tokio::test]
async fn what_is_there_is_not_sent_again_and_lives_on() {
    let Some(server) = RedisServer::start() else { return };
    let (here, other) = (open(&server), open(&server));
    let all = vectors(0..500);
    here.offer(MODEL, &all).await;
    let mut redis = server.connect();
    let before = commands(&mut redis);
    here.offer(MODEL, &all).await;
    assert!(commands(&mut redis) <= before + 1, "it knows that they are there");
    let soon = |redis: &mut Connection| {
        for key in redis.keys::<_, Vec<String>>("nonet:vector:*").expect("readable") {
            redis.pexpire::<_, ()>(key, 60_000).expect("set");
        }
    };
    let lives = |redis: &mut Connection| {
        redis
            .keys::<_, Vec<String>>("nonet:vector:*")
            .expect("readable")
            .iter()
            .all(|key| redis.pttl::<_, i64>(key).expect("readable") > 80 * 24 * 3_600_000)
    };
    soon(&mut redis);
    other.offer(MODEL, &all).await;
    assert!(lives(&mut redis), "whoever has them on its disk uses them");
    soon(&mut redis);
    other.read(MODEL, &keys(&all)).await;
    assert!(lives(&mut redis), "read");
    soon(&mut redis);
    here.renew().await.expect("renewed");
    assert!(lives(&mut redis), "in use for long");
    redis::cmd("FLUSHALL").exec(&mut redis).expect("emptied");
    here.renew().await.expect("renewed");
    here.offer(MODEL, &all).await;
    assert_eq!(count(&mut redis), 500, "Redis was emptied meanwhile");
}

#[tokio::test]
async fn of_too_many_those_go_that_were_not_used_for_the_longest_time() {
    let Some(server) = RedisServer::start() else { return };
    let clock = Clock::default();
    let open = || {
        let link = Arc::new(RedisLink::new(server.address()));
        VectorKeys { most: 20 * PARTS, ..VectorKeys::new(link, "nonet", clock.clone()) }
    };
    let here = open();
    let (old, new) = (vectors(0..100), vectors(1_000..3_000));
    here.offer(MODEL, &old).await;
    for some in new.chunks(50) {
        clock.advance(Duration::from_secs(60));
        here.offer(MODEL, some).await;
        open().offer(MODEL, &old).await;
    }
    let mut redis = server.connect();
    assert_eq!(count(&mut redis), 20 * PARTS);
    let found = here.read(MODEL, &keys(&old)).await;
    assert!(found.iter().all(Option::is_some), "they are in use");
    // A vector unused for that long is gone from `times` as well.
    clock.advance(LIFE + Duration::from_secs(1));
    here.offer(MODEL, &vectors(5_000..5_120)).await;
    let times: Vec<String> = redis.keys("nonet:vector:*:times").expect("readable");
    let named: usize = times.iter().map(|key| redis.zcard::<_, usize>(key).expect("readable")).sum();
    assert_eq!((times.len(), named), (PARTS, 120));
}

#[tokio::test]
async fn what_is_damaged_or_newer_is_left_out() {
    let Some(server) = RedisServer::start() else { return };
    let here = open(&server);
    let all = vectors(0..5);
    here.offer(MODEL, &all).await;
    let mut redis = server.connect();
    let good = bytes_of(&all[0].1);
    let newer = [&[2][..], &good[1..]].concat();
    let mut flipped = good.clone();
    flipped[9] ^= 1;
    for ((key, _), bad) in all.iter().zip([&newer[..], &flipped, &good[..good.len() - 4], b""]) {
        let name = hex(key);
        let key = format!("nonet:vector:{{{MODEL}:{}}}:{name}", &name[..1]);
        assert!(redis.exists::<_, bool>(&key).expect("readable"), "{key}");
        redis.set::<_, _, ()>(&key, bad).expect("spoilt");
    }
    let found = open(&server).read(MODEL, &keys(&all)).await;
    assert_eq!(found, [None, None, None, None, Some(all[4].1.clone())]);
    let long: Arc<[f32]> = vec![1.0; LONGEST + 1].into();
    here.offer(MODEL, &[([7; 16], long)]).await;
    assert_eq!(count(&mut redis), 5, "what is too long is not shared");
}

#[tokio::test]
async fn without_redis_there_are_none() {
    let Some(server) = RedisServer::start() else { return };
    let here = open(&server);
    let all = vectors(0..1_000);
    here.offer(MODEL, &all).await;
    drop(server);
    let began = Instant::now();
    assert_eq!(here.read(MODEL, &keys(&all)).await, vec![None; 1_000]);
    here.offer(MODEL, &vectors(2_000..3_000)).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
