//! Who sees which results, for how long, and in which form.

use nonet_auth::Owner;
use nonet_base::clock::Clock;
use nonet_store::{GatewayStore, Retention};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::jobs::JobStart;

const HOUR: Duration = Duration::from_secs(3_600);
const BUDGET: usize = 10_000;

fn open(folder: Option<&TempDir>, clock: &Clock, bytes: u64) -> KeptResults {
    let folder = folder.map(|folder| folder.path().to_owned());
    let store: Arc<dyn Store> =
        Arc::new(GatewayStore::in_files(folder, Retention { bytes, age: HOUR }, clock.clone(), ""));
    let jobs = Arc::new(Jobs::new(store.clone(), clock.clone()));
    KeptResults::new(store, jobs, Selector::new(None))
}

fn in_memory() -> KeptResults {
    open(None, &Clock::default(), 1 << 20)
}

fn owner(profile: Option<&str>) -> JobOwner {
    JobOwner { owner: Owner::new(profile, None), ..JobOwner::default() }
}

fn rows(count: usize) -> Value {
    let rows: Vec<Value> = (0..count).map(|id| json!({ "id": id })).collect();
    json!({ "content": [{ "type": "text", "text": json!(rows).to_string() }] })
}

async fn keep(kept: &KeptResults, owner: &JobOwner, result: Value) -> String {
    kept.keep(owner, Arc::new(result)).await.expect("it is kept").reference
}

async fn fetch(kept: &KeptResults, owner: &JobOwner, query: Value) -> Result<Value, FaultCode> {
    let query = query.as_object().cloned().expect("an object");
    kept.fetch(owner, query, BUDGET).await.map_err(|fault| fault.code)
}

/// Whether a result can be read under its reference.
async fn is_kept(kept: &KeptResults, reference: &str) -> bool {
    fetch(kept, &owner(None), json!({ "ref": reference })).await.is_ok()
}

#[tokio::test]
async fn a_result_is_shown_to_its_owner_through_every_gateway() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let clock = Clock::default();
    let (one, other) = (open(Some(&folder), &clock, 1 << 20), open(Some(&folder), &clock, 1 << 20));
    for (of, by, shown) in [
        (None, None, true),
        (None, Some("work"), false),
        (Some("work"), Some("work"), true),
        (Some("work"), Some("home"), false),
        (Some("work"), None, false),
    ] {
        let query = json!({ "ref": keep(&one, &owner(of), rows(3)).await });
        for kept in [&one, &other] {
            let page = fetch(kept, &owner(by), query.clone()).await;
            assert_eq!(
                page.map(|page| page["total"].clone()),
                if shown { Ok(json!(3)) } else { Err(FaultCode::NotFound) }
            );
        }
    }
    assert_eq!(one.counts().await.map(|counts| counts.entries), Some(5));
}

#[tokio::test]
async fn a_result_is_kept_within_a_size_and_an_age() {
    let clock = Clock::default();
    let kept = open(None, &clock, 1_000);
    assert_eq!(kept.counts().await, None, "nothing is opened before it is used");
    let text = |length: usize| json!("x".repeat(length));
    let first = keep(&kept, &owner(None), text(400)).await;
    let second = keep(&kept, &owner(None), text(400)).await;
    assert!(is_kept(&kept, &first).await && is_kept(&kept, &second).await);
    let third = keep(&kept, &owner(None), text(400)).await;
    assert!(!is_kept(&kept, &first).await && is_kept(&kept, &second).await);
    clock.advance(HOUR / 2);
    let fourth = keep(&kept, &owner(None), text(10)).await;
    clock.advance(HOUR / 2);
    keep(&kept, &owner(None), text(10)).await;
    assert!(!is_kept(&kept, &third).await, "it is an hour old");
    assert!(is_kept(&kept, &fourth).await);
}

#[tokio::test]
async fn only_a_large_result_is_shortened_and_kept() {
    let kept = in_memory();
    let fit = async |result: Value| {
        let size = results::json_len(&result);
        kept.fit(&owner(None), result.into(), size, 2_000).await.into_tree().await
    };
    let small = rows(3);
    assert_eq!(fit(small.clone()).await, small);
    assert_eq!(kept.counts().await, None);
    let shown = fit(rows(1_000)).await;
    let note =
        shown["content"].as_array().and_then(|blocks| blocks.last()?["text"].as_str()).expect("a note");
    let note: Value = serde_json::from_str(note).expect("JSON");
    let read = note["read_on"][0]["arguments"]["params"].clone();
    let page = fetch(&kept, &owner(None), read).await.expect("it is kept");
    assert_eq!((&page["rows"][0]["id"], &page["total"]), (&json!(3), &json!(1_000)));
}

#[tokio::test]
async fn a_result_is_read_by_a_filter() {
    let kept = in_memory();
    let reference = keep(&kept, &owner(None), rows(3)).await;
    let select =
        async |filter: &str| fetch(&kept, &owner(None), json!({ "ref": reference, "select": filter })).await;
    assert_eq!(select(".[1:]").await.expect("rows")["total"], 2);
    assert_eq!(select(".[2].id").await.expect("a value")["value"], 2);
    assert_eq!(select(".[").await, Err(FaultCode::InvalidParams));
    assert_eq!(select("  ").await.expect("all rows")["total"], 3);
    let page = json!({ "content": [{ "type": "text", "text": "{\"events\": [1, 2]}" }] });
    let query = json!({ "ref": keep(&kept, &owner(None), page).await, "select": ".result.events | length" });
    let counted = fetch(&kept, &owner(None), query).await.expect("a value");
    assert_eq!(counted["note"], "no `result`; keys: events");
    let page = json!({ "content": [{ "type": "text", "text": "{\"data\": {\"events\": [1, 2]}}" }] });
    let reference = keep(&kept, &owner(None), page).await;
    for (filter, note) in
        [(".events | length", json!("no `events`; keys: data")), (".data.events", Value::Null)]
    {
        let read = fetch(&kept, &owner(None), json!({ "ref": reference, "select": filter })).await;
        assert_eq!(read.expect("a value")["note"], note, "{filter}");
    }
}

#[tokio::test]
async fn params_take_kept_results_by_their_references() {
    let kept = in_memory();
    let reference = keep(&kept, &owner(None), rows(3)).await;
    let fill = async |owner: &JobOwner, params: Value| match kept.fill(owner, &params).await {
        Ok(filled) => Ok(filled.map(|filled| filled.value)),
        Err(fault) => Err(fault.code),
    };
    let template = json!({ "id": format!("{{{{ref:{reference}[2].id}}}}"), "other": "{{name}}" });
    let filled = fill(&owner(None), template.clone()).await;
    assert_eq!(filled, Ok(Some(json!({ "id": 2, "other": "{{name}}" }))));
    assert_eq!(fill(&owner(Some("work")), template).await, Err(FaultCode::NotFound));
    let lost = json!({ "id": format!("{{{{ref:{reference}[9].id}}}}") });
    assert_eq!(fill(&owner(None), lost).await, Err(FaultCode::NotFound));
    // A blank, and no `ref:`, are forgiven.
    for form in [format!("{{{{ref: {reference} [2].id}}}}"), format!("{{{{{reference}[-1].id}}}}")] {
        assert_eq!(fill(&owner(None), json!(form)).await, Ok(Some(json!(2))), "{form}");
    }
    // Text in braces is a fault only in the place of a reference, unless it is said to be text.
    assert_eq!(fill(&owner(None), json!("{{ref}} {{name}} {{a..b}}")).await, Ok(None));
    assert_eq!(fill(&owner(None), json!("{{ref:main}} {{name}}")).await, Err(FaultCode::InvalidParams));
    let literal = fill(&owner(None), json!("{{literal:ref:main}} {{name}}")).await;
    assert_eq!(literal, Ok(Some(json!("{{ref:main}} {{name}}"))));
}

#[tokio::test]
async fn a_kept_picture_is_its_data() {
    let kept = in_memory();
    let data = "iVBORw0K".repeat(700);
    let picture = json!({ "type": "image", "data": data, "mimeType": "image/png" });
    let both = json!({ "content": [{ "type": "text", "text": "a map" }, picture] });
    let reference = keep(&kept, &owner(None), both).await;
    let fill = async |template: String| {
        let filled = kept.fill(&owner(None), &json!(template)).await.expect("it is kept");
        filled.expect("a template").value
    };
    assert_eq!(fill(format!("{{{{ref:{reference}.content.1.data}}}}")).await, json!(data));
    assert_eq!(fill(format!("{{{{ref:{reference}}}}}")).await, json!("a map"));
    let only = keep(&kept, &owner(None), json!({ "content": [picture] })).await;
    assert_eq!(
        fill(format!("data:image/png;base64,{{{{ref:{only}}}}}")).await,
        json!(format!("data:image/png;base64,{data}"))
    );
    assert_eq!(fill(format!("{{{{ref:{only}.content[0].mimeType}}}}")).await, json!("image/png"));
}

#[tokio::test]
async fn the_result_of_a_task_is_there_once_the_task_has_ended() {
    let kept = in_memory();
    let me = JobOwner { session: Some(1), ..owner(None) };
    let (end, ended) = tokio::sync::oneshot::channel();
    let start = JobStart {
        label: "shop.rows".into(),
        owner: me.clone(),
        began: Instant::now(),
        cancel: CancellationToken::new(),
        progress: Arc::new(|| None),
        place: None,
    };
    let work = tokio::spawn(async { ended.await.expect("the test ends it") });
    let job = kept.jobs.adopt(start, work, |_| {});
    let fault = kept.of_task(&me, &job.id, BUDGET).await.expect_err("it is running");
    let next = fault.next_step.expect("a call that waits");
    assert_eq!(next.arguments["params"], json!({ "task_id": job.id, "wait": true }));
    end.send(rows(3).into()).expect("it is running");
    job.wait(HOUR).await.expect("it ends");
    assert_eq!(kept.of_task(&me, &job.id, BUDGET).await.expect("it is kept"), rows(3));
    let page = fetch(&kept, &me, json!({ "ref": job.id })).await.expect("it is kept");
    assert_eq!(page["total"], 3);
    let other = JobOwner { session: Some(2), ..owner(None) };
    assert_eq!(
        kept.of_task(&other, &job.id, BUDGET).await.map_err(|fault| fault.code),
        Err(FaultCode::NotFound)
    );
}
