//! What is known after calls, per owner, across runs and beside other gateways.

use std::time::Duration;

use nonet_api::work::KeptCounts;
use nonet_search::Outcome;
use nonet_store::{GatewayStore, JobRow, Lifespan, Retention, Share, StoreFuture};
use serde_json::Value;
use tempfile::TempDir;

use super::*;

const TOOL: &str = "shop.buy";

struct Run {
    figures: Figures,
    tasks: TaskTracker,
}

/// Figures of a gateway, in the store of a folder.
fn run(folder: &TempDir) -> Run {
    let retention = Retention { bytes: 1 << 20, age: Duration::from_secs(3_600) };
    let clock = Clock::default();
    let store = GatewayStore::in_files(Some(folder.path().to_owned()), retention, clock.clone(), "");
    of_store(Some(Arc::new(store)), clock)
}

fn of_store(store: Option<Arc<dyn Store>>, clock: Clock) -> Run {
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    Run { figures: Figures::new(store, clock, tasks.clone(), stop), tasks }
}

impl Run {
    /// Stops the gateway, which writes the remaining figures.
    async fn end(self) {
        self.figures.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn succeed(&self, ms: u64) {
        self.call(TOOL, "", Duration::from_millis(ms), None);
    }

    fn fail(&self, owner: &str, message: &str) {
        self.call(TOOL, owner, Duration::ZERO, Some(CallFailure { code: "tool_error", message }));
    }

    fn call(&self, tool: &str, owner: &str, in_server: Duration, error: Option<CallFailure<'_>>) {
        self.figures.record(&tool.into(), &EndedCall { owner, version: "1", in_server, error });
    }

    fn report(&self) -> ToolReport {
        self.figures.of(TOOL, "", "1").expect("it was called")
    }

    fn message(&self, owner: &str, version: &str) -> Option<String> {
        Some(self.figures.of(TOOL, owner, version)?.last_error?.message)
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

#[tokio::test]
async fn figures_outlive_the_run() {
    let folder = folder();
    let before = run(&folder);
    assert_eq!(before.figures.of(TOOL, "", "1"), None);
    for ms in [10, 20, 60] {
        before.succeed(ms);
    }
    before.fail("", "out of order");
    let known = before.report();
    assert_eq!((known.calls, known.failures), (4, 1));
    assert_eq!((known.mean_ms, known.p95_ms, known.cost), (Some(30), Some(60), Some(Cost::Medium)));
    before.end().await;

    let after = run(&folder);
    after.succeed(30);
    assert_eq!(after.report().calls, 1);
    after.figures.recall().await;
    assert_eq!(after.report(), ToolReport { calls: 5, ..known });
}

#[tokio::test]
async fn two_gateways_add_up() {
    let folder = folder();
    let (one, two) = (run(&folder), run(&folder));
    one.figures.recall().await;
    two.figures.recall().await;
    one.succeed(10);
    two.fail("", "out of order");
    one.end().await;
    two.end().await;
    let after = run(&folder);
    after.figures.recall().await;
    assert_eq!((after.report().calls, after.report().failures), (2, 1));
}

#[tokio::test]
async fn an_error_is_told_to_its_owner_without_secrets_and_for_its_version_only() {
    let folder = folder();
    let before = run(&folder);
    before.fail("", &format!("cannot sign in: password=hunter2hunter2 {}", "x ".repeat(200)));
    before.fail("reader", "no such page");
    let check = |run: &Run| {
        let own = run.message("", "1").expect("it is told");
        assert!(own.starts_with("cannot sign in: password=*** x x") && own.len() < 210, "{own}");
        assert_eq!(run.message("reader", "1").as_deref(), Some("no such page"));
        assert_eq!((run.message("writer", "1"), run.message("", "2")), (None, None));
        assert_eq!(run.figures.of(TOOL, "writer", "1").map(|all| all.failures), Some(2));
    };
    check(&before);
    before.end().await;
    let after = run(&folder);
    after.figures.recall().await;
    check(&after);
}

#[tokio::test(start_paused = true)]
async fn many_calls_are_written_together_a_few_seconds_later() {
    let store = Arc::new(CountingStore::default());
    let run = of_store(Some(store.clone()), Clock::default());
    for number in 0..1_000 {
        run.call(&format!("shop.t{}", number % 10), "", Duration::from_millis(1), None);
    }
    let until = async |writes: usize| {
        while store.writes.lock().len() < writes {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    until(1).await;
    assert_eq!(*store.writes.lock(), [(10, 1_000)]);
    // The next write makes up for a failed one.
    store.fails.store(true, Relaxed);
    run.succeed(1);
    until(2).await;
    store.fails.store(false, Relaxed);
    run.succeed(1);
    until(3).await;
    assert_eq!(store.writes.lock()[1..], [(1, 1), (1, 2)]);
    run.end().await;
    assert_eq!(store.writes.lock().len(), 3, "nothing was left to write");
}

#[tokio::test]
async fn without_a_store_figures_are_of_this_run() {
    let run = of_store(None, Clock::default());
    run.figures.recall().await;
    (0..5).for_each(|_| run.succeed(1));
    let Run { figures, tasks } = &run;
    figures.stop.cancel();
    tasks.close();
    tasks.wait().await;
    assert_eq!((run.report().calls, figures.cost(TOOL)), (5, Cost::Low));
    assert_eq!(figures.cost("shop.other"), Cost::Medium);
}

#[tokio::test]
async fn tools_in_memory_are_bounded() {
    let clock = Clock::default();
    let run = of_store(None, clock.clone());
    run.succeed(1);
    clock.advance(Duration::from_secs(1));
    for number in 0..MOST_TOOLS {
        run.call(&format!("many.t{number}"), "", Duration::from_millis(1), None);
    }
    let figures = &run.figures;
    figures.shared.write().await;
    assert_eq!((figures.shared.tools.len(), figures.of(TOOL, "", "1")), (MOST_TOOLS, None));
}

/// A store of figures that counts writes: the tools of each, and their calls.
#[derive(Debug, Default)]
struct CountingStore {
    writes: Mutex<Vec<(usize, u64)>>,
    fails: AtomicBool,
}

impl Store for CountingStore {
    fn figures(&self) -> StoreFuture<'_, Vec<NamedFigures>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn add_figures(&self, fresh: Vec<NamedFigures>) -> StoreFuture<'_, Option<Vec<NamedFigures>>> {
        self.writes.lock().push((fresh.len(), fresh.iter().map(|(_, figures)| figures.calls).sum()));
        let fails = self.fails.load(Relaxed);
        Box::pin(async move { if fails { Err(StoreError::Unusable) } else { Ok(Some(fresh)) } })
    }

    fn put_result<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: Share,
        _: Arc<Value>,
    ) -> StoreFuture<'a, Lifespan> {
        unreachable!("figures only")
    }

    fn put_job(&self, _: JobRow, _: Share, _: Option<Arc<Value>>) -> StoreFuture<'_, Lifespan> {
        unreachable!("figures only")
    }

    fn text<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, Option<String>> {
        unreachable!("figures only")
    }

    fn job<'a>(&'a self, _: &'a str, _: &'a str) -> StoreFuture<'a, Option<JobRow>> {
        unreachable!("figures only")
    }

    fn jobs<'a>(&'a self, _: &'a str, _: usize) -> StoreFuture<'a, Vec<JobRow>> {
        unreachable!("figures only")
    }

    fn sweep(&self) -> StoreFuture<'_, ()> {
        unreachable!("figures only")
    }

    fn counts(&self) -> StoreFuture<'_, Option<KeptCounts>> {
        unreachable!("figures only")
    }

    fn outcomes(&self) -> StoreFuture<'_, Vec<Outcome>> {
        unreachable!("figures only")
    }

    fn put_outcome(&self, _: Outcome) -> StoreFuture<'_, ()> {
        unreachable!("figures only")
    }
}

#[test]
fn an_absurd_time_in_the_store_has_a_date() {
    let shown = humantime::format_rfc3339_seconds(at_unix_ms(u64::MAX)).to_string();
    assert_eq!(shown, "9999-12-31T23:59:59Z");
}
