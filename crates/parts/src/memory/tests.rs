//! What is remembered, for which owner, and how much of it.

use std::time::Duration;

use nonet_api::tools::TodoState;
use nonet_store::{GatewayStore, NewRecord, RecordKind, RecordQuota, Retention};
use serde_json::json;
use tempfile::TempDir;

use super::*;

fn open(folder: Option<&TempDir>) -> Memory {
    let clock = Clock::default();
    let retention = Retention { bytes: 1 << 20, age: Duration::from_secs(3_600) };
    let folder = folder.map(|folder| folder.path().to_owned());
    let records = GatewayStore::in_files(folder, retention, clock.clone(), "").records;
    Memory::new(records, clock, &Settings::default(), TaskTracker::default(), CancellationToken::default())
}

async fn remember(memory: &Memory, content: &str, tags: &[&str]) -> (String, bool, Vec<Arc<str>>) {
    let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
    match memory.remember("", content, &tags, None).await.expect("it is kept") {
        FactOutcome::Kept { id, known, similar, .. } => (id, known, similar),
        FactOutcome::Full => panic!("there is room"),
    }
}

async fn recall(memory: &Memory, owner: &str, query: &str, tags: &[&str]) -> Vec<String> {
    let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
    let recalled = memory.recall(owner, query, &tags, None, None).await.expect("it is read");
    recalled.facts.iter().map(|(fact, _)| fact.document.description.clone()).collect()
}

#[tokio::test]
async fn facts_are_found_by_words_tags_and_age() {
    let memory = open(None);
    let deploys = remember(&memory, "Deploys are on Tuesdays", &["Ops"]).await.0;
    memory.clock.advance(Duration::from_secs(1));
    remember(&memory, "The office is closed in August", &["people", "ops"]).await;
    memory.clock.advance(Duration::from_secs(1));
    remember(&memory, "Alice prefers tea", &["people"]).await;
    assert_eq!(recall(&memory, "", "when do we deploy", &[]).await, ["Deploys are on Tuesdays"]);
    assert_eq!(
        recall(&memory, "", "", &[]).await,
        ["Alice prefers tea", "The office is closed in August", "Deploys are on Tuesdays"]
    );
    assert_eq!(recall(&memory, "", "", &["OPS", "people"]).await, ["The office is closed in August"]);
    assert!(recall(&memory, "", "when do we deploy", &["people"]).await.is_empty());
    assert!(recall(&memory, "another", "deploy", &[]).await.is_empty());

    // The same text is the same fact, which then is the newest.
    memory.clock.advance(Duration::from_secs(1));
    let again = remember(&memory, "  deploys are  on tuesdays ", &["release"]).await;
    assert_eq!((&again.0, again.1), (&deploys, true));
    assert_eq!(recall(&memory, "", "", &["ops", "release"]).await.len(), 1);
    assert_eq!(recall(&memory, "", "", &[]).await.len(), 3);
    let near = remember(&memory, "Deploys are on Tuesdays and Thursdays", &[]).await;
    assert_eq!((near.1, &near.2[..]), (false, &[deploys.as_str().into()][..]));

    let forgotten = memory.forget("", &deploys).await.expect("it is removed").expect("it was there");
    assert_eq!(forgotten["tags"], json!(["Ops", "release"]));
    assert_eq!(memory.forget("", &deploys).await.expect("readable"), None);
    assert_eq!(recall(&memory, "", "tuesdays", &[]).await, ["Deploys are on Tuesdays and Thursdays"]);
}

#[tokio::test]
async fn what_another_gateway_changes_is_seen_at_once() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (one, other) = (open(Some(&folder)), open(Some(&folder)));
    assert!(recall(&one, "", "", &[]).await.is_empty());
    let id = remember(&other, "Deploys are on Tuesdays", &[]).await.0;
    assert_eq!(recall(&one, "", "deploys", &[]).await.len(), 1);
    // Both at the same time.
    let (first, second) =
        tokio::join!(remember(&one, "Alice likes tea", &[]), remember(&other, "alice likes tea", &[]));
    assert_eq!(first.0, second.0);
    for memory in [&one, &other] {
        assert_eq!(recall(memory, "", "", &[]).await.len(), 2);
    }
    one.forget("", &id).await.expect("it is removed");
    assert!(recall(&other, "", "deploys", &[]).await.is_empty());
    nonet_store::forget(folder.path(), nonet_store::ForgetTarget::Memory).expect("emptied");
    assert!(recall(&one, "", "", &[]).await.is_empty());
}

#[tokio::test]
async fn ten_thousand_facts_are_found_and_more_are_refused() {
    let memory = open(None);
    for owner in ["a", "b", "c"] {
        for number in 0..MOST_FACTS {
            let body = json!({ "content": format!("Machine {number} is in rack {}", number % 97) });
            let record = NewRecord {
                owner: owner.into(),
                id: number.to_string(),
                ..NewRecord::new(RecordKind::Fact, body)
            };
            memory.records.put(record, RecordQuota::Refuse(MOST_FACTS)).await.expect("it is kept");
        }
    }
    let found = recall(&memory, "a", "where is machine 7001", &[]).await;
    assert_eq!(found[0], "Machine 7001 is in rack 17", "{found:?}");
    for owner in ["b", "c"] {
        let more = memory.remember(owner, "one more", &[], None).await.expect("it is answered");
        assert!(matches!(more, FactOutcome::Full));
    }
    // Only the facts of two owners stay in memory.
    memory.shelf("c");
    let owners: Vec<String> = memory.shelves.lock().iter().map(|shelf| shelf.owner.clone()).collect();
    assert_eq!(owners, ["b", "c"]);
    memory.forget("c", "7").await.expect("it is removed").expect("it was there");
    let more = memory.remember("c", "one more", &[], None).await.expect("it is answered");
    assert!(matches!(more, FactOutcome::Kept { .. }));
}

#[tokio::test]
async fn a_desk_is_the_same_in_the_store_and_in_a_session() {
    let memory = open(None);
    let list = Worklist::default();
    for desk in [WorkPlace::Session(&list), WorkPlace::Kept { owner: "" }] {
        assert_eq!(memory.work(desk).await.expect("read"), Work::default());
        assert_eq!(memory.set_goal(desk, Some("ship 2.0")).await.expect("set"), None);
        assert_eq!(memory.set_goal(desk, Some("ship 2.1")).await.expect("set").as_deref(), Some("ship 2.0"));
        let mut ids = Vec::new();
        for number in 0..MOST_TASKS {
            match memory.add_task(desk, &format!("step {number}"), None).await.expect("added") {
                TaskAddition::Added { id, removed: None } => ids.push(id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(memory.add_task(desk, "one more", None).await.expect("answered"), TaskAddition::Full);
        for number in 0..25 {
            let note = format!("note {number}");
            let state = (number == 24).then_some(TodoState::Completed);
            memory.update_task(desk, &ids[3], state, Some(&note)).await.expect("changed").expect("there");
        }
        memory.update_task(desk, &ids[9], Some(TodoState::InProgress), None).await.expect("changed");
        let work = memory.work(desk).await.expect("read");
        assert_eq!(work.goal.as_deref(), Some("ship 2.1"));
        let open: Vec<&str> = work.open().iter().take(2).map(|task| task.subject.as_str()).collect();
        assert_eq!((open, work.open().len()), (vec!["step 9", "step 0"], MOST_TASKS - 1));
        // The completed task makes room, and the outcome reports it.
        match memory.add_task(desk, "one more", Some("really")).await.expect("added") {
            TaskAddition::Added { removed: Some(removed), .. } => {
                assert_eq!(removed.subject, "step 3");
                assert_eq!((removed.notes.len(), removed.notes[0].as_str()), (20, "note 5"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(memory.update_task(desk, &ids[3], None, Some("x")).await.expect("answered"), None);
        memory.set_goal(desk, None).await.expect("removed");
        assert_eq!(memory.work(desk).await.expect("read").goal, None);
    }
}
