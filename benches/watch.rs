//! The cost of a watch's check, apart from its call and the store: reading the record, deciding, serializing
//! the result.
//!
//! `cargo bench --bench watch`

use nonet_parts::watches::{HISTORY, SeenValue, Watch, WatchFinding};
use serde::Deserialize;
use serde_json::{Value, json};

fn main() {
    divan::main();
}

/// Returns a tool result: a list with this many rows.
fn value(rows: usize) -> Value {
    (0..rows).map(|row| json!({ "id": row, "title": format!("row {row}"), "open": row % 2 == 0 })).collect()
}

fn finding(value: &Value) -> WatchFinding {
    WatchFinding::Value { seen: SeenValue::new(value, value.to_string().len() < 2_000, 1), is_met: false }
}

/// Returns a watch with a full history, as in the store.
fn kept() -> String {
    let mut watch = Watch { tool: "files.read_file".into(), interval_s: 30, ..Watch::default() };
    for rows in 0..HISTORY {
        watch.take(finding(&value(rows % 20)), 1_700_000_000_000, 12);
    }
    json!(watch).to_string()
}

#[divan::bench(args = [1, 20, 1_000])]
fn check(bencher: divan::Bencher<'_, '_>, rows: usize) {
    let (kept, value) = (kept(), value(rows));
    bencher.bench(|| {
        let body: Value = serde_json::from_str(&kept).expect("JSON");
        let mut watch = Watch::deserialize(&body).expect("a watch");
        let news = watch.take(finding(&value), 1_700_000_030_000, 12);
        (json!(watch).to_string(), news)
    });
}
