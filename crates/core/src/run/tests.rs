//! When work becomes a job, in paused time.

use futures::FutureExt;
use nonet_base::clock::Clock;
use nonet_config::{ClientLimits, Quotas};
use nonet_parts::quotas::{Account, QuotaExceeded};
use nonet_store::{GatewayStore, JobState, Retention, Store};
use serde_json::Value;

use super::*;
use nonet_state::session::Session;

const HOUR: Duration = Duration::from_secs(3_600);

fn store() -> Arc<GatewayStore> {
    let retention = Retention { bytes: 1 << 20, age: HOUR };
    Arc::new(GatewayStore::in_files(None, retention, Clock::default(), ""))
}

fn jobs() -> Jobs {
    Jobs::new(store(), Clock::default())
}

/// Creates a client that waits for a minute.
fn caller() -> Caller {
    let limits = ClientLimits { soft_deadline: Duration::from_secs(60), ..ClientLimits::default() };
    Caller { session: Session::new(None), lasting: true, limits, ..Caller::default() }
}

fn launch(background: bool) -> Run {
    Run { background, ..Run::new("shop.buy", CancellationToken::new(), Arc::new(|| None)) }
}

async fn work(takes: Duration) -> CallResult {
    tokio::time::sleep(takes).await;
    text_result("done".into()).into()
}

/// Returns the text of an answer as JSON.
fn json_of(answer: &CallResult) -> Value {
    let text = answer.as_tree().expect("a tree")["content"][0]["text"].as_str().expect("text");
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

#[tokio::test(start_paused = true)]
async fn work_over_the_deadline_goes_on_as_a_job() {
    let check = async |background: bool, takes: f64, waits: Option<f64>| {
        let (jobs, caller) = (jobs(), caller());
        let (run, began) = (launch(background), Instant::now());
        let went_on = run.went_on.clone();
        let answer = run.wait(&jobs, &caller, work(Duration::from_secs_f64(takes)).boxed()).await;
        let answer = json_of(&answer.expect("an answer"));
        assert_eq!(went_on.load(Ordering::Acquire), waits.is_some(), "{background} {takes}");
        let Some(waits) = waits else { return assert_eq!(answer, "done") };
        let waited = began.elapsed().as_secs_f64();
        assert!((waits..waits + 0.1).contains(&waited), "{background} {takes}: {waited}");
        assert_eq!((&answer["state"], &answer["tool"]), (&json!("running"), &json!("shop.buy")));
        let id = answer["task_id"].as_str().expect("a handle");
        assert_eq!(answer["next_step"]["arguments"]["params"], json!({ "task_id": id, "wait": true }));
        let job = jobs.get(id, &caller.owner()).expect("it is its caller's");
        job.wait(HOUR).await.expect("it ends");
        assert_eq!(job.summary().elapsed_ms / 100, (takes * 10.0) as u64);
    };
    check(false, 59.0, None).await;
    check(false, 61.0, Some(60.0)).await;
    check(true, 1.9, None).await;
    check(true, 2.1, Some(2.0)).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_has_a_job_before_its_handle_is_given() {
    let (store, caller) = (store(), caller());
    let jobs = Jobs::new(store.clone(), Clock::default());
    let answer = launch(true).wait(&jobs, &caller, std::future::pending().boxed()).await.expect("an answer");
    let id = json_of(&answer)["task_id"].as_str().expect("a handle").to_string();
    let row = store.job(&id, "").await.expect("readable").expect("it is there");
    assert_eq!(row.state, JobState::Working);
}

#[tokio::test(start_paused = true)]
async fn work_over_the_deadline_goes_on_whatever_the_quota_of_jobs_says() {
    let jobs = jobs();
    let account = Account::of_session(Quotas { calls: 2, jobs: 1, ..Quotas::default() });
    let caller = Caller { account: account.clone(), ..caller() };
    let first = Run { admission: caller.admit(true).expect("there is room"), ..launch(true) };
    first.wait(&jobs, &caller, std::future::pending().boxed()).await.expect("a handle");
    assert_eq!(caller.admit(true).err(), Some(QuotaExceeded::Jobs(1)));
    let run = Run { admission: caller.admit(false).expect("a call"), ..launch(false) };
    let cancel = run.cancel.clone();
    let answer = run.wait(&jobs, &caller, std::future::pending().boxed()).await.expect("an answer");
    assert_eq!(json_of(&answer)["state"], "running");
    assert!(!cancel.is_cancelled() && account.jobs() == 2 && jobs.running() == 2);
    // A finished call gives its place back.
    for _ in 0..5 {
        let run = Run { admission: caller.admit(false).expect("a call"), ..launch(false) };
        run.wait(&jobs, &caller, work(Duration::from_secs(1)).boxed()).await.expect("an answer");
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_deadline_leaves_time_for_a_small_call() {
    let (jobs, mut caller) = (jobs(), caller());
    caller.limits.soft_deadline = Duration::ZERO;
    let answer = launch(false).wait(&jobs, &caller, work(LEAST_PATIENCE / 2).boxed()).await;
    assert_eq!(json_of(&answer.expect("an answer")), "done");
}

#[tokio::test(start_paused = true)]
async fn the_caller_is_told_of_the_end_unless_its_protocol_has_tasks() {
    for (as_task, takes, told) in [
        (TaskMode::Never, 61, true),
        (TaskMode::IfSlow, 61, false),
        (TaskMode::IfSlow, 1, false),
        (TaskMode::AtOnce, 1, false),
    ] {
        let (jobs, caller) = (jobs(), Caller { as_task, ..caller() });
        let other = Session::new(None);
        let answer = launch(false).wait(&jobs, &caller, work(Duration::from_secs(takes)).boxed()).await;
        let task = matches!(answer, Err(Interrupt::Task(_)));
        assert_eq!(
            task,
            as_task == TaskMode::AtOnce || as_task == TaskMode::IfSlow && takes > 60,
            "{as_task:?}"
        );
        tokio::time::sleep(HOUR).await;
        assert_eq!(jobs.running(), 0);
        assert_eq!((caller.session.mailbox.waiting(), other.mailbox.waiting()), (usize::from(told), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_cancels_its_work_and_is_no_job() {
    let (jobs, caller, run) = (jobs(), caller(), launch(false));
    let (of_work, of_caller) = (run.cancel.clone(), caller.cancel.clone());
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        of_caller.cancel();
    });
    let began = Instant::now();
    let answer = run.wait(&jobs, &caller, std::future::pending().boxed()).await.expect("an answer");
    assert_eq!(json_of(&answer)["error"]["code"], "cancelled");
    assert!(of_work.is_cancelled() && began.elapsed() < Duration::from_secs(8));
    assert!(jobs.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_answer() {
    let (jobs, caller) = (jobs(), caller());
    for after in [1, 61] {
        let work = async move {
            tokio::time::sleep(Duration::from_secs(after)).await;
            panic!("out of order");
        };
        let answer = launch(false).wait(&jobs, &caller, work.boxed()).await.expect("an answer");
        let answer = json_of(&answer);
        if after < 60 {
            assert_eq!(answer["error"]["code"], "internal");
        } else {
            tokio::time::sleep(HOUR).await;
            let id = answer["task_id"].as_str().expect("a handle");
            let found = jobs.find(id, &caller.owner()).await.expect("it can be read").expect("it is known");
            assert_eq!(found.state, nonet_api::work::TaskState::Failed);
        }
    }
}
