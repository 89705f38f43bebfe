//! Ownership, quotas, ends, progress, and what other gateways know about a job. Time is paused in tests that
//! wait.

use std::sync::atomic::AtomicBool;

use nonet_api::work::KeptCounts;
use nonet_config::Quotas;
use nonet_search::Outcome;
use nonet_store::{GatewayStore, NamedFigures, Retention, StoreFuture};
use serde_json::json;
use tempfile::TempDir;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn store(folder: Option<&TempDir>, clock: &Clock) -> Arc<GatewayStore> {
    let folder = folder.map(|folder| folder.path().to_owned());
    Arc::new(GatewayStore::in_files(folder, Retention { bytes: 1 << 20, age: HOUR }, clock.clone(), ""))
}

fn jobs() -> Jobs {
    let clock = Clock::default();
    Jobs::new(store(None, &clock), clock)
}

fn owner(session: Option<u64>, profile: Option<&str>, local: bool) -> JobOwner {
    JobOwner { session, owner: Owner::new(profile, None), local, ..JobOwner::default() }
}

fn me() -> JobOwner {
    owner(Some(1), None, false)
}

fn start(owner: JobOwner) -> JobStart {
    JobStart {
        label: "shop.buy".into(),
        owner,
        began: Instant::now(),
        cancel: CancellationToken::new(),
        progress: Arc::new(|| None),
        place: None,
    }
}

/// Starts a job of this owner that never ends.
fn endless(jobs: &Jobs, owner: JobOwner) -> Arc<Job> {
    jobs.adopt(start(owner), tokio::spawn(std::future::pending()), |_| {})
}

#[tokio::test]
async fn a_job_is_shown_to_its_owner() {
    let jobs = jobs();
    let check = |of: &JobOwner, by: &JobOwner, shown: bool, listed: bool| {
        let job = endless(&jobs, of.clone());
        assert_eq!(jobs.get(&job.id, by).is_some(), shown, "{of:?} {by:?}");
        assert_eq!(jobs.list(by).iter().any(|one| one.id == job.id), listed, "{of:?} {by:?}");
    };
    let (one, other) = (owner(Some(1), None, false), owner(Some(2), None, false));
    check(&one, &one, true, true);
    check(&one, &other, false, false);
    // One user's clients on this machine share handles, but not lists.
    let (here, there) = (owner(Some(1), None, true), owner(Some(2), None, true));
    check(&here, &there, true, false);
    check(&here, &other, false, false);
    check(&one, &there, false, false);
    // A profile separates even those clients.
    let work = owner(Some(1), Some("work"), true);
    check(&work, &work, true, true);
    check(&work, &here, false, false);
    check(&here, &work, false, false);
    check(&work, &owner(Some(2), Some("work"), true), true, false);
    // Without sessions, only a handle identifies a client.
    let nobody = owner(None, None, false);
    check(&nobody, &nobody, true, false);
    check(&nobody, &one, true, false);
    check(&one, &nobody, false, false);
}

#[tokio::test(start_paused = true)]
async fn work_that_was_begun_always_becomes_a_job() {
    let jobs = Jobs { most: 3, ..jobs() };
    let (end, ended) = tokio::sync::oneshot::channel();
    let work = tokio::spawn(async { ended.await.expect("the test ends it") });
    let first = jobs.adopt(start(me()), work, |_| {});
    for _ in 0..2 {
        assert_eq!(jobs.has_room(), Ok(()));
        endless(&jobs, me());
    }
    assert_eq!(jobs.has_room(), Err(QuotaExceeded::Gateway(3)), "nothing new begins");
    let late = start(me());
    let cancel = late.cancel.clone();
    let late = jobs.adopt(late, tokio::spawn(std::future::pending()), |_| {});
    assert!(!cancel.is_cancelled() && jobs.knows(&late.id) && jobs.knows(&first.id));
    end.send(json!({ "content": [] }).into()).expect("it is running");
    first.wait(HOUR).await.expect("it ends");
    tokio::time::advance(Duration::from_secs(1)).await;
    let last = endless(&jobs, me());
    assert!(!jobs.knows(&first.id) && jobs.knows(&last.id));
    assert_eq!(jobs.list(&me())[0].id, last.id, "newest first");
    // The store still has it.
    let found = jobs.find(&first.id, &me()).await.expect("it can be read").expect("it is known");
    assert_eq!(found.state, TaskState::Completed);
    assert_eq!(jobs.running(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_client_with_the_most_ended_jobs_makes_room() {
    let jobs = Jobs { most: 30, ..jobs() };
    let of = |name: &str| JobOwner { account: Account::of_errands(name, Quotas::default()), ..me() };
    let done = async |owner: JobOwner| {
        let job = jobs.adopt(start(owner), tokio::spawn(async { json!({}).into() }), |_| {});
        job.wait(HOUR).await.expect("it ends");
        tokio::time::advance(Duration::from_secs(1)).await;
        job.id.clone()
    };
    let mut small = Vec::new();
    for _ in 0..2 {
        small.push(done(of("small")).await);
    }
    for _ in 0..100 {
        done(of("large")).await;
    }
    assert!(small.iter().all(|id| jobs.knows(id)), "another client's jobs went");
    assert!(jobs.all().len() <= 30);
}

#[tokio::test(start_paused = true)]
async fn a_job_has_its_place_until_it_ends() {
    let jobs = jobs();
    let account = Account::of_session(Quotas { calls: 2, jobs: 1, ..Quotas::default() });
    let begin = |launch: bool| if launch { account.job() } else { account.call() };
    let hand_over = |admission: crate::quotas::Admission| {
        let place = Some(admission.into_job(&account));
        jobs.adopt(JobStart { place, ..start(me()) }, tokio::spawn(std::future::pending()), |_| {})
    };
    let first = hand_over(begin(true).expect("there is room"));
    assert_eq!(begin(true).err(), Some(QuotaExceeded::Jobs(1)));
    // Work in progress continues regardless of the number of jobs.
    let (one, other) = (begin(false).expect("a call"), begin(false).expect("a call"));
    assert_eq!(begin(false).err(), Some(QuotaExceeded::Calls(2)));
    hand_over(one);
    hand_over(other);
    assert_eq!((account.jobs(), begin(false).err()), (3, Some(QuotaExceeded::Jobs(3))));
    first.cancel.cancel();
    drop(first);
    assert_eq!(jobs.running(), 3);
}

/// A client with a handle finds the job in the store, even if this gateway ends at that moment.
#[tokio::test(start_paused = true)]
async fn a_job_is_recorded_when_its_handle_is_given() {
    let clock = Clock::default();
    let takes = Duration::from_secs(2);
    let slow = Arc::new(UnreliableStore { store: store(None, &clock), takes, fails: false });
    let jobs = Jobs::new(slow.clone(), clock);
    let job = endless(&jobs, me());
    assert!(slow.job(&job.id, "").await.expect("readable").is_none());
    job.recorded().await;
    assert_eq!(slow.job(&job.id, "").await.expect("readable").map(|row| row.state), Some(JobState::Working));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_job_is_that_of_its_work() {
    let jobs = jobs();
    let check = async |value: Option<Value>, cancelled: bool, expected: TaskState, word: &str| {
        let start = start(me());
        let cancel = start.cancel.clone();
        let work = async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            value.expect("the work panics").into()
        };
        let job = jobs.adopt(start, tokio::spawn(work), |_| {});
        let running = json!(job.summary());
        assert_eq!((&running["state"], &running["elapsed_ms"]), (&json!("running"), &json!(0)));
        if cancelled {
            cancel.cancel();
        }
        assert!(job.wait(Duration::from_secs(4)).await.is_none());
        let end = job.wait(HOUR).await.expect("it ends");
        assert_eq!((end.state, end.value.is_none()), (expected, true));
        let found = jobs.find(&job.id, &me()).await.expect("it can be read").expect("it is known");
        let summary = json!(found);
        assert_eq!(summary["state"], word);
        assert_eq!(summary["elapsed_ms"], 5_000);
    };
    check(Some(json!({ "content": [] })), false, TaskState::Completed, "completed").await;
    check(Some(json!({ "isError": false })), false, TaskState::Completed, "completed").await;
    check(Some(json!({ "isError": true })), false, TaskState::Failed, "failed").await;
    check(Some(json!({ "isError": true })), true, TaskState::Cancelled, "cancelled").await;
    check(Some(json!({ "content": [] })), true, TaskState::Cancelled, "cancelled").await;
    check(None, false, TaskState::Failed, "failed").await;
}

#[tokio::test(start_paused = true)]
async fn progress_is_shown_until_the_end() {
    let jobs = jobs();
    let progress: JobProgress = Arc::new(|| Some(json!({ "progress": 2 })));
    let work = tokio::time::sleep(Duration::from_secs(5));
    let running = tokio::spawn(async move {
        work.await;
        json!({}).into()
    });
    let job = jobs.adopt(JobStart { progress, ..start(me()) }, running, |_| {});
    assert_eq!(job.summary().progress, Some(json!({ "progress": 2 })));
    job.wait(HOUR).await.expect("it ends");
    assert_eq!(job.summary().progress, None);
}

#[tokio::test(start_paused = true)]
async fn the_end_is_announced_once_and_says_whether_somebody_waited() {
    let jobs = jobs();
    for waits in [false, true] {
        let awaited = Arc::new(AtomicBool::new(false));
        let (announced, ended) = tokio::sync::oneshot::channel();
        let seen = awaited.clone();
        let announce = move |job: &Arc<Job>| {
            seen.store(job.is_awaited(), Ordering::Release);
            announced.send(job.summary().into_notice()).expect("the test waits");
        };
        let work = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            json!({}).into()
        };
        let job = jobs.adopt(start(me()), tokio::spawn(work), announce);
        let waiting = job.clone();
        let waiter = waits.then(|| tokio::spawn(async move { waiting.wait(HOUR).await }));
        let notice = ended.await.expect("it is announced");
        assert_eq!((&notice["kind"], &notice["state"]), (&json!("task_ended"), &json!("completed")));
        assert_eq!(notice["next_step"]["arguments"]["params"], json!({ "task_id": job.id, "wait": true }));
        assert_eq!(awaited.load(Ordering::Acquire), waits);
        if let Some(waiter) = waiter {
            waiter.await.expect("no panic").expect("it ended");
        }
    }
}

#[test]
fn another_run_knows_what_ended_and_what_was_lost() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let clock = Clock::default();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mine = owner(Some(1), None, true);
    let client = owner(Some(7), None, true);
    let after = Jobs::new(store(Some(&folder), &clock), clock.clone());
    let earlier = async |owner: &JobOwner, limit| -> Vec<TaskState> {
        after.earlier(owner, limit).await.into_iter().map(|task| task.state).collect()
    };

    let first = runtime();
    let lost = first.block_on(async {
        let before = Jobs::new(store(Some(&folder), &clock), clock.clone());
        let done = before.adopt(
            start(mine.clone()),
            tokio::spawn(async { json!({ "content": [] }).into() }),
            |_| {},
        );
        done.wait(HOUR).await.expect("it ends");
        let hangs = tokio::spawn(std::future::pending());
        let lost = before.adopt(start(mine.clone()), hangs, |_| {});
        while before.store.job(&lost.id, "").await.expect("readable").is_none() {
            tokio::task::yield_now().await;
        }
        // The job lives as long as the first gateway runs.
        assert!(after.store.job(&lost.id, "").await.expect("readable").expect("there").leased);
        assert_eq!(earlier(&client, 10).await, [], "its tasks are its own to list");
        lost.id.clone()
    });
    drop(first);

    clock.advance(Duration::from_secs(60));
    runtime().block_on(async {
        // A process just started by another test may hold the lock of the first gateway for a moment.
        while earlier(&client, 10).await.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(earlier(&client, 10).await, [TaskState::Lost, TaskState::Completed]);
        assert_eq!(earlier(&client, 1).await, [TaskState::Lost]);
        assert_eq!(earlier(&owner(Some(7), Some("work"), true), 10).await, []);
        assert_eq!(earlier(&owner(None, None, true), 10).await, [], "no list without a session");
        let found = json!(after.find(&lost, &client).await.expect("it is known"));
        assert_eq!(found["state"], "lost");
        assert!(found["message"].is_string() && found["elapsed_ms"].as_u64() >= Some(60_000), "{found}");
        assert!(
            after.find(&lost, &owner(Some(7), Some("work"), true)).await.expect("it can be read").is_none()
        );
    });
}

/// A store that is slow or fails.
#[derive(Debug)]
struct UnreliableStore {
    store: Arc<GatewayStore>,
    takes: Duration,
    fails: bool,
}

impl Store for UnreliableStore {
    fn put_result<'a>(
        &'a self,
        id: &'a str,
        owner: &'a str,
        share: Share,
        value: Arc<Value>,
    ) -> StoreFuture<'a, Lifespan> {
        self.store.put_result(id, owner, share, value)
    }

    fn put_job(&self, job: JobRow, share: Share, result: Option<Arc<Value>>) -> StoreFuture<'_, Lifespan> {
        Box::pin(async move {
            tokio::time::sleep(self.takes).await;
            if self.fails { Err(StoreError::Unusable) } else { self.store.put_job(job, share, result).await }
        })
    }

    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<String>> {
        self.store.text(id, owner)
    }

    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<JobRow>> {
        self.store.job(id, owner)
    }

    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> StoreFuture<'a, Vec<JobRow>> {
        self.store.jobs(owner, limit)
    }

    fn sweep(&self) -> StoreFuture<'_, ()> {
        self.store.sweep()
    }

    fn counts(&self) -> StoreFuture<'_, Option<KeptCounts>> {
        self.store.counts()
    }

    fn outcomes(&self) -> StoreFuture<'_, Vec<Outcome>> {
        self.store.outcomes()
    }

    fn put_outcome(&self, outcome: Outcome) -> StoreFuture<'_, ()> {
        self.store.put_outcome(outcome)
    }

    fn figures(&self) -> StoreFuture<'_, Vec<NamedFigures>> {
        self.store.figures()
    }

    fn add_figures(&self, fresh: Vec<NamedFigures>) -> StoreFuture<'_, Option<Vec<NamedFigures>>> {
        self.store.add_figures(fresh)
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_has_ended_only_when_its_result_is_kept() {
    let clock = Clock::default();
    for fails in [false, true] {
        let takes = Duration::from_secs(10);
        let unreliable = Arc::new(UnreliableStore { store: store(None, &clock), takes, fails });
        let jobs = Jobs::new(unreliable.clone(), clock.clone());
        let result = json!({ "content": [{ "type": "text", "text": "done" }] });
        let work = result.clone();
        let job = jobs.adopt(start(me()), tokio::spawn(async move { work.into() }), |_| {});
        // Recording the start takes just as long.
        assert!(job.wait(Duration::from_secs(19)).await.is_none());
        let end = job.wait(HOUR).await.expect("it ends");
        let stored = unreliable.text(&job.id, "").await.expect("readable");
        assert_eq!((stored.is_some(), end.value.as_deref()), (!fails, fails.then_some(&result)));
    }
}
