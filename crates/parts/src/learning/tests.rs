//! Which call counts for which search, for how long, and what survives a run.

use nonet_search::{Signals, outcomes::LIFETIME_S};
use nonet_store::{GatewayStore, Retention};
use nonet_testing::RedisServer;
use tempfile::TempDir;

use super::*;
use crate::testing::store_at;

const TOOLS: [&str; 3] = ["desk.one", "desk.two", "desk.six"];

async fn learning(folder: Option<&TempDir>, clock: &Clock, tasks: &TaskTracker) -> Learning {
    let retention = Retention { bytes: 1 << 20, age: Duration::from_secs(3_600) };
    let folder = folder.map(|folder| folder.path().to_owned());
    let store = Arc::new(GatewayStore::in_files(folder, retention, clock.clone(), ""));
    let learning = Learning::new(store, clock.clone(), tasks.clone(), CancellationToken::new());
    learning.recall().await;
    learning
}

async fn in_memory() -> Learning {
    learning(None, &Clock::default(), &TaskTracker::new()).await
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(Into::into).collect()
}

/// Remembers a search that found the tools with these scores.
fn search(searches: &RecentSearches, query: &str, fits: [f32; 3]) {
    let hit = |(document, fit): (usize, f32)| Hit {
        document,
        score: fit,
        exact: false,
        named: false,
        dense: 0.0,
        part: None,
        signals: Signals { meaning: fit, ..Signals::default() },
    };
    let hits: Vec<Hit> = fits.into_iter().enumerate().map(hit).collect();
    searches.remember(words(query), &hits, |hit| Some(TOOLS[hit.document].into()));
}

/// Returns a tool's bonus for a query.
fn lift(learning: &Learning, query: &str, tool: &str) -> f32 {
    learning.lifts(&words(query)).get(tool).map_or(0.0, |learned| learned.boost)
}

#[tokio::test]
async fn a_success_counts_once_for_the_last_search_that_found_the_tool() {
    let (learning, searches) = (in_memory().await, RecentSearches::default());
    search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
    search(&searches, "plants water", [0.9, 0.8, 0.7]);
    learning.succeeded(&searches, "desk.two");
    let gained = lift(&learning, "plants water", "desk.two");
    assert!(gained > 0.0 && lift(&learning, "papers quarter", "desk.two") == 0.0);
    // The second call counts for the earlier search, the third for none.
    learning.succeeded(&searches, "desk.two");
    assert!(lift(&learning, "papers quarter", "desk.two") > 0.0);
    learning.succeeded(&searches, "desk.two");
    assert_eq!(lift(&learning, "plants water", "desk.two"), gained);
}

#[tokio::test]
async fn a_tool_that_hardly_fits_was_not_found() {
    let (learning, searches) = (in_memory().await, RecentSearches::default());
    search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
    learning.succeeded(&searches, "desk.six");
    learning.succeeded(&searches, "desk.unknown");
    assert!(learning.lifts(&words("papers quarter")).is_empty());
}

#[tokio::test]
async fn the_first_hit_loses_when_another_tool_is_called() {
    let (learning, searches) = (in_memory().await, RecentSearches::default());
    for _ in 0..3 {
        search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
        learning.succeeded(&searches, "desk.one");
    }
    let before = lift(&learning, "papers quarter", "desk.one");
    search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
    learning.succeeded(&searches, "desk.two");
    assert!(lift(&learning, "papers quarter", "desk.one") < before);
}

#[tokio::test(start_paused = true)]
async fn a_late_call_does_not_count() {
    let (learning, searches) = (in_memory().await, RecentSearches::default());
    search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
    tokio::time::advance(FOLLOWED_WITHIN).await;
    learning.succeeded(&searches, "desk.one");
    assert!(learning.lifts(&words("papers quarter")).is_empty());
}

#[tokio::test]
async fn old_searches_are_forgotten() {
    let (learning, searches) = (in_memory().await, RecentSearches::default());
    search(&searches, "papers quarter", [0.9, 0.1, 0.1]);
    for _ in 0..MAX_SEARCHES {
        search(&searches, "plants water", [0.1, 0.1, 0.9]);
    }
    learning.succeeded(&searches, "desk.one");
    assert!(learning.lifts(&words("papers quarter")).is_empty());
}

#[tokio::test]
async fn outcomes_outlive_the_run_and_fade() {
    let (folder, clock) = (tempfile::tempdir().expect("temporary folder"), Clock::default());
    let (tasks, searches) = (TaskTracker::new(), RecentSearches::default());
    let before = learning(Some(&folder), &clock, &tasks).await;
    search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
    before.succeeded(&searches, "desk.one");
    let fresh = lift(&before, "papers quarter", "desk.one");
    // Queued outcomes are written before the end.
    before.stop.cancel();
    tasks.close();
    tasks.wait().await;

    let after = learning(Some(&folder), &clock, &TaskTracker::new()).await;
    // A second may have passed.
    let again = lift(&after, "papers quarter", "desk.one");
    assert!((again - fresh).abs() < 1e-4, "{again} and {fresh}");
    clock.advance(Duration::from_secs(LIFETIME_S / 4));
    let faded = lift(&after, "papers quarter", "desk.one");
    assert!(0.0 < faded && faded < fresh, "{faded} of {fresh}");
    clock.advance(Duration::from_secs(LIFETIME_S));
    assert_eq!(lift(&after, "papers quarter", "desk.one"), 0.0);
}

#[tokio::test]
async fn nothing_is_learned_before_it_was_recalled() {
    let clock = Clock::default();
    let retention = Retention { bytes: 1, age: Duration::ZERO };
    let store = Arc::new(GatewayStore::in_files(None, retention, clock.clone(), ""));
    let learning = Learning::new(store, clock, TaskTracker::new(), CancellationToken::new());
    let searches = RecentSearches::default();
    search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
    learning.succeeded(&searches, "desk.one");
    assert!(learning.lifts(&words("papers quarter")).is_empty());
}

#[tokio::test]
async fn replicas_learn_from_each_other_and_lose_nothing_of_their_own() {
    let Some(server) = RedisServer::start() else { return };
    let (clock, tasks) = (Clock::default(), TaskTracker::new());
    let replica = async || {
        let store = Arc::new(store_at(&server, &clock));
        let learning = Learning::new(store, clock.clone(), tasks.clone(), CancellationToken::new());
        learning.recall().await;
        learning
    };
    let read_again = async |learning: &Learning| {
        learning.recalled.get().expect("recalled").read_again(&*learning.store).await
    };
    let (here, other) = (replica().await, replica().await);
    let searches = RecentSearches::default();
    search(&searches, "papers quarter", [0.9, 0.8, 0.2]);
    here.succeeded(&searches, "desk.one");
    search(&searches, "plants water", [0.9, 0.8, 0.7]);
    let began = std::time::Instant::now();
    while lift(&other, "papers quarter", "desk.one") == 0.0 {
        assert!(began.elapsed() < Duration::from_secs(20), "it was not written");
        tokio::time::sleep(Duration::from_millis(10)).await;
        read_again(&other).await.expect("readable");
    }
    assert_eq!(lift(&other, "papers quarter", "desk.one"), lift(&here, "papers quarter", "desk.one"));

    // Outcomes that cannot be written stay in memory until they can, regardless of what is read.
    let port = server.port;
    drop(server);
    other.succeeded(&searches, "desk.two");
    assert!(read_again(&other).await.is_err());
    assert!(
        lift(&other, "plants water", "desk.two") > 0.0 && lift(&other, "papers quarter", "desk.one") > 0.0
    );
    let Some(_server) = RedisServer::start_at(port) else { return };
    let began = std::time::Instant::now();
    while read_again(&other).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(20), "Redis is not found again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(lift(&other, "plants water", "desk.two") > 0.0, "its own");
    assert_eq!(lift(&other, "papers quarter", "desk.one"), 0.0, "Redis was emptied");
}
