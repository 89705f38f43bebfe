//! What a new kind of data costs: the name of its table. Here the kind is a note that is read once.

use std::sync::Arc;

use super::{
    super::{
        LeaseHolder,
        engine::{Batch, Engine as RowEngine, Key, NewRow, Scan, Table},
        formats,
        redis::RedisParts,
        sqlite::SqliteEngine,
        *,
    },
    engines::{Engine, with_both_engines},
};

with_both_engines![a_new_kind_is_a_table];

const NOTES: Table = "note_of_a_test";

/// Returns the engine as a kind of data gets it.
fn rows(engine: &Engine) -> Arc<dyn RowEngine> {
    let holder = LeaseHolder::new(Clock::default());
    match engine {
        Engine::Sqlite(folder) => {
            Arc::new(SqliteEngine::lazy(Some(folder.path().to_owned()), &formats::RECORDS, holder))
        }
        Engine::Redis(server) => RedisParts::new(server.address(), "nonet", None, &holder).engine,
    }
}

async fn put(rows: &dyn RowEngine, to: &str, text: &str) {
    let mut batch = Batch::default();
    batch.put(NewRow::new(Key::new(NOTES, to, text), text.into()), None);
    assert!(rows.commit(batch).await.expect("written"));
}

/// Returns a reader's notes, each to one caller only.
async fn read(rows: &dyn RowEngine, to: &str) -> Vec<String> {
    let found = rows.scan(Scan::owner(NOTES, to)).await.expect("readable").rows;
    let mut batch = Batch::default();
    found.iter().for_each(|row| batch.delete(row));
    match rows.commit(batch).await.expect("readable") {
        true => found.into_iter().map(|row| row.body).collect(),
        false => Vec::new(),
    }
}

async fn a_new_kind_is_a_table(engine: &Engine) {
    let (here, other) = (rows(engine), rows(engine));
    for text in ["first", "second"] {
        put(&*here, "reader", text).await;
    }
    put(&*other, "somebody else", "third").await;
    let reads = futures::future::join_all([&here, &other].map(|rows| read(&**rows, "reader"))).await;
    assert!(reads.contains(&vec!["first".to_owned(), "second".to_owned()]), "{reads:?}");
    assert!(reads.contains(&Vec::new()), "of two readers one gets them: {reads:?}");
    assert_eq!(read(&*here, "somebody else").await, ["third"]);
}
