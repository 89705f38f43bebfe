//! Carries over what earlier versions of Nonet kept under keys of their own: trusted definitions, outcomes,
//! figures and kept results. The old keys stay until they expire, so that a replica of an earlier version,
//! which may still run, does not trust anew whatever its servers list.

use std::collections::HashMap;

use nonet_base::json::set_member;
use redis::pipe;
use serde_json::{Value, json};

use super::{
    super::{
        StoreError,
        engine::{Batch, Key, NewRow},
        kept, learned, pins,
    },
    rows::RedisEngine,
};

/// How long it is known that nothing is left to carry over, in milliseconds.
const LIFE_MS: u64 = 400 * 24 * 3_600 * 1_000;

/// Writes the rows of whatever earlier versions kept, once.
pub(super) async fn carry_over(engine: &RedisEngine) -> Result<(), StoreError> {
    let key = |name: &str| format!("{}{name}", engine.base);
    let (is_done,): (bool,) = engine.link.send(pipe().exists(key("carried"))).await?;
    if is_done {
        return Ok(());
    }
    // Without the trust nothing goes on; the rest is worth less than a start.
    put_all(engine, pins_of(engine).await?).await?;
    let rest = async {
        put_all(engine, learned_of(engine).await?).await?;
        put_all(engine, results_of(engine).await?).await
    };
    if let Err(error) = rest.await {
        tracing::warn!(%error, "some outcomes, figures and results of an earlier version were not carried over");
    }
    engine.link.send(pipe().pset_ex(key("carried"), "1", LIFE_MS).ignore()).await
}

/// Writes rows that are not there yet: another replica may have been faster, or has changed a row since.
async fn put_all(engine: &RedisEngine, rows: Vec<NewRow>) -> Result<(), StoreError> {
    for new in rows {
        let mut batch = Batch::default();
        batch.put(new, None);
        match engine.try_commit(batch).await {
            Ok(_) | Err(StoreError::NewerValue { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the readable members of a hash.
async fn hash(engine: &RedisEngine, name: &str) -> Result<HashMap<String, String>, StoreError> {
    let (all,): (Vec<(Vec<u8>, Vec<u8>)>,) =
        engine.link.send(pipe().hgetall(format!("{}{name}", engine.base))).await?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
    Ok(all.into_iter().filter_map(|(field, value)| Some((text(field)?, text(value)?))).collect())
}

/// Returns the value of an earlier format; `None` if it has another one.
fn parsed(text: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(text).ok()?;
    (value["v"] == 1).then_some(value)
}

/// `pins:of:SERVER` had pins as JSON by KIND:NAME, `pins:texts:SERVER` the texts by KIND:NAME:HASH.
async fn pins_of(engine: &RedisEngine) -> Result<Vec<NewRow>, StoreError> {
    let servers = format!("{}pins:servers", engine.base);
    let (servers,): (Vec<String>,) = engine.link.send(pipe().smembers(servers)).await?;
    let mut rows = Vec::new();
    for server in servers {
        let owner = pins::owner_of("", &server);
        for (id, text) in hash(engine, &format!("pins:texts:{server}")).await? {
            rows.push(NewRow::new(Key::new(pins::TEXTS, &*owner, id), text));
        }
        for (id, text) in hash(engine, &format!("pins:of:{server}")).await? {
            let Some(mut pin) = parsed(&text) else { continue };
            let since: u64 = pin["since"].as_str().and_then(|since| since.parse().ok()).unwrap_or_default();
            set_member(&mut pin, "since_ms", since);
            let due = pin["waiting"].is_string().then_some(since);
            rows.push(NewRow { due, ..NewRow::new(Key::new(pins::PINS, &*owner, id), pin.to_string()) });
        }
    }
    Ok(rows)
}

/// `outcomes` had outcomes as JSON by LENGTH:DOCUMENT:WORDS, `figures` the figures by tool, with the last
/// calls as Base64.
async fn learned_of(engine: &RedisEngine) -> Result<Vec<NewRow>, StoreError> {
    let mut rows = Vec::new();
    for (field, text) in hash(engine, "outcomes").await? {
        let named =
            field.split_once(':').and_then(|(length, rest)| rest.split_at_checked(length.parse().ok()?));
        if let (Some((document, words)), Some(outcome)) = (named, parsed(&text)) {
            let key = Key::new(learned::OUTCOMES, document, words.trim_start_matches(':'));
            rows.push(NewRow { due: outcome["at"].as_u64(), ..NewRow::new(key, outcome.to_string()) });
        }
    }
    for (tool, text) in hash(engine, "figures").await? {
        if let Some(figures) = parsed(&text).and_then(learned::of_base64) {
            let due = figures["called_ms"].as_u64();
            rows.push(NewRow {
                due,
                ..NewRow::new(Key::new(learned::FIGURES, "", tool), figures.to_string())
            });
        }
    }
    Ok(rows)
}

/// `ended` had the ids of ended entries in order, `entry:ID` an entry, whose value is where it was.
async fn results_of(engine: &RedisEngine) -> Result<Vec<NewRow>, StoreError> {
    let ended = format!("{}ended", engine.base);
    let (ids,): (Vec<String>,) = engine.link.send(pipe().zrange(ended, 0, -1)).await?;
    let mut rows = Vec::new();
    for id in ids {
        let entry = hash(engine, &format!("entry:{id}")).await?;
        let text = |field: &str| entry.get(field).map(String::as_str).unwrap_or_default();
        let number = |field: &str| text(field).parse::<u64>().ok();
        if text("v") != "1" {
            continue;
        }
        let body = json!({
            "label": (text("holder") != "0").then(|| text("label")), "state": text("state"),
            "started_ms": number("started").unwrap_or_default(), "ended_ms": number("ended"),
            "bytes": number("bytes").unwrap_or_default(), "blob": Some(text("value")).filter(|name| !name.is_empty()),
            "share": text("share"), "aged_ms": number("aged").unwrap_or_default(),
        });
        rows.push(NewRow::new(Key::new(kept::ENTRIES, text("owner"), id), body.to_string()));
    }
    Ok(rows)
}
