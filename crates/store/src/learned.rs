//! Outcomes of searches, and figures of tools. Written once for both engines.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nonet_base::json::set_member;
use nonet_search::outcomes::{LIFETIME_S, MOST_OUTCOMES, MOST_PER_DOCUMENT, Outcome, level};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    LastError, NamedFigures, RecentCalls, StoreError, ToolFigures,
    engine::{Batch, Engine, Key, NewRow, Row, Scan, TRIES, Table, too_busy},
};

/// Outcomes: the owner is the document, the id its words as JSON, and the due number the time in seconds
/// since 1970.
pub(crate) const OUTCOMES: Table = "outcome";
/// Figures: the id is the tool, and the due number the time of the last call, in milliseconds since 1970.
pub(crate) const FIGURES: Table = "figures";

/// The maximum number of tools with figures. The least recently called ones are dropped first.
pub(crate) const MOST_TOOLS: usize = 10_000;
/// How many rows are read or written at a time.
const AT_ONCE: usize = 50;

/// What searches and calls have taught.
#[derive(Debug)]
pub(crate) struct Learned {
    engine: Arc<dyn Engine>,
    /// Of several writes of this process, one at a time.
    turn: tokio::sync::Mutex<()>,
}

/// An outcome without its name.
#[derive(Serialize, Deserialize)]
struct OutcomeBody {
    weight: f32,
    at: u64,
}

/// Figures without their name.
#[derive(Serialize, Deserialize)]
struct FiguresBody {
    calls: u64,
    failures: u64,
    /// Four bytes per call, in hex.
    recent: String,
    called_ms: u64,
    errors: BTreeMap<String, LastError>,
}

impl Learned {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, turn: tokio::sync::Mutex::default() }
    }

    /// Returns all outcomes. Invalid ones are left out, with a warning.
    pub(crate) async fn outcomes(&self) -> Result<Vec<Outcome>, StoreError> {
        let rows = self.engine.scan(Scan::table(OUTCOMES)).await?.rows;
        Ok(readable("outcomes", rows, |row| outcome_of(&row)))
    }

    /// Stores an outcome. Of two with the same words and document, the stronger is kept: two gateways that
    /// learn the same at the same time count it once. Then the bounds of [`Outcomes`] are applied: the
    /// weakest outcomes are removed first, but never the new one, and so are outcomes too old to have an
    /// effect.
    ///
    /// [`Outcomes`]: nonet_search::Outcomes
    pub(crate) async fn put_outcome(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let key = Key::new(OUTCOMES, &*outcome.document, serde_json::json!(outcome.words).to_string());
        let body = serde_json::json!(OutcomeBody { weight: outcome.weight, at: outcome.at }).to_string();
        let new = NewRow { due: Some(outcome.at), ..NewRow::new(key.clone(), body) };
        let _turn = self.turn.lock().await;
        for _ in 0..TRIES {
            let old = self.engine.get(vec![key.clone()]).await?.pop().flatten();
            let kept = old.as_ref().and_then(outcome_of);
            if kept.is_some_and(|kept| strength(&kept, outcome.at) > strength(outcome, outcome.at)) {
                return Ok(());
            }
            let mut batch = Batch::default();
            batch.put(new.clone(), old.as_ref());
            match self.engine.commit(batch).await {
                Ok(true) => return self.make_room(outcome).await,
                Ok(false) => {}
                // It is left alone.
                Err(StoreError::NewerValue { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(too_busy())
    }

    async fn make_room(&self, newest: &Outcome) -> Result<(), StoreError> {
        // Outcomes from the future stay: a clock that starts in 1970 would remove everything.
        if let Some(before) = newest.at.checked_sub(LIFETIME_S + 1) {
            let old = Scan::due(&[OUTCOMES], before).heads();
            self.delete(&self.engine.scan(old).await?.rows).await?;
        }
        let owner = newest.document.to_string();
        if self.engine.count(OUTCOMES, Some(owner.clone())).await? > MOST_PER_DOCUMENT {
            self.drop_weakest(Scan::owner(OUTCOMES, &owner), newest, MOST_PER_DOCUMENT).await?;
        }
        if self.engine.count(OUTCOMES, None).await? > MOST_OUTCOMES {
            self.drop_weakest(Scan::table(OUTCOMES), newest, MOST_OUTCOMES).await?;
        }
        Ok(())
    }

    async fn drop_weakest(&self, scan: Scan, newest: &Outcome, most: usize) -> Result<(), StoreError> {
        let rows = self.engine.scan(scan).await?.rows;
        let too_many = rows.len().saturating_sub(most);
        let mut rows: Vec<(Outcome, Row)> = rows
            .into_iter()
            .filter_map(|row| Some((outcome_of(&row)?, row)))
            .filter(|(outcome, _)| outcome.words != newest.words || outcome.document != newest.document)
            .collect();
        // In the order of `Outcomes`.
        rows.sort_by(|(a, _), (b, _)| -> Ordering {
            let names = || (&b.words, &b.document).cmp(&(&a.words, &a.document));
            let strengths = strength(a, newest.at).total_cmp(&strength(b, newest.at));
            strengths.then(a.at.cmp(&b.at)).then_with(names)
        });
        let weakest: Vec<Row> = rows.into_iter().take(too_many).map(|(_, row)| row).collect();
        self.delete(&weakest).await
    }

    /// Deletes rows. If others change one meanwhile, it stays until the next time.
    async fn delete(&self, rows: &[Row]) -> Result<(), StoreError> {
        for some in rows.chunks(AT_ONCE) {
            let mut batch = Batch::default();
            some.iter().for_each(|row| batch.delete(row));
            self.engine.commit(batch).await?;
        }
        Ok(())
    }

    /// Returns all figures. Invalid ones are left out, with a warning.
    pub(crate) async fn figures(&self) -> Result<Vec<NamedFigures>, StoreError> {
        let rows = self.engine.scan(Scan::table(FIGURES)).await?.rows;
        Ok(readable("figures of tools", rows, |row| Some((row.key.id.as_str().into(), figures_of(&row)?))))
    }

    /// Adds figures to the stored ones, so that several gateways add up. Returns the sums for these tools.
    pub(crate) async fn add_figures(
        &self,
        fresh: Vec<NamedFigures>,
    ) -> Result<Vec<NamedFigures>, StoreError> {
        let _turn = self.turn.lock().await;
        let mut all = Vec::with_capacity(fresh.len());
        for some in fresh.chunks(AT_ONCE) {
            all.extend(self.add_some(some).await?);
        }
        // What was added is not added again.
        if let Err(error) = self.drop_least_recent().await {
            tracing::debug!(%error, "figures of too many tools stay until the next write");
        }
        Ok(all)
    }

    async fn drop_least_recent(&self) -> Result<(), StoreError> {
        let too_many = self.engine.count(FIGURES, None).await?.saturating_sub(MOST_TOOLS);
        if too_many == 0 {
            return Ok(());
        }
        let oldest = Scan::due(&[FIGURES], u64::MAX).heads().limit(too_many);
        self.delete(&self.engine.scan(oldest).await?.rows).await
    }

    async fn add_some(&self, fresh: &[NamedFigures]) -> Result<Vec<NamedFigures>, StoreError> {
        let keys: Vec<Key> = fresh.iter().map(|(tool, _)| Key::new(FIGURES, "", &**tool)).collect();
        for _ in 0..TRIES {
            let kept = self.engine.get(keys.clone()).await?;
            let mut batch = Batch::default();
            let mut all = Vec::with_capacity(fresh.len());
            for (((tool, fresh), old), key) in fresh.iter().zip(kept).zip(&keys) {
                let mut figures = old.as_ref().and_then(figures_of).unwrap_or_default();
                figures.add(fresh.clone());
                let new =
                    NewRow { due: Some(figures.called_ms), ..NewRow::new(key.clone(), text_of(&figures)) };
                batch.put(new, old.as_ref());
                all.push((tool.clone(), figures));
            }
            match self.engine.commit(batch).await {
                Ok(true) => return Ok(all),
                Ok(false) => {}
                // They are left alone.
                Err(StoreError::NewerValue { .. }) => return Ok(fresh.to_vec()),
                Err(error) => return Err(error),
            }
        }
        Err(too_busy())
    }
}

fn strength(outcome: &Outcome, now: u64) -> f64 {
    level(f64::from(outcome.weight), outcome.at, now)
}

/// Returns what can be read, and warns of the rest.
fn readable<T>(what: &str, rows: Vec<Row>, read: impl Fn(Row) -> Option<T>) -> Vec<T> {
    let all = rows.len();
    let found: Vec<T> = rows.into_iter().filter_map(read).collect();
    if found.len() < all {
        tracing::warn!(unreadable = all - found.len(), "unreadable {what} are left out");
    }
    found
}

fn outcome_of(row: &Row) -> Option<Outcome> {
    let OutcomeBody { weight, at } = serde_json::from_str(&row.body).ok()?;
    let words = serde_json::from_str(&row.key.id).ok()?;
    let outcome = Outcome { words, document: row.key.owner.as_str().into(), weight, at };
    outcome.is_sound().then_some(outcome)
}

fn text_of(figures: &ToolFigures) -> String {
    let ToolFigures { calls, failures, recent, called_ms, errors } = figures;
    let (calls, failures, called_ms, errors) = (*calls, *failures, *called_ms, errors.clone());
    let recent = hex(&recent.to_bytes());
    serde_json::json!(FiguresBody { calls, failures, recent, called_ms, errors }).to_string()
}

fn figures_of(row: &Row) -> Option<ToolFigures> {
    let FiguresBody { calls, failures, recent, called_ms, errors } = serde_json::from_str(&row.body).ok()?;
    let digits = recent.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = digits.0.iter().map(byte).collect::<Option<_>>().filter(|_| digits.1.is_empty())?;
    Some(ToolFigures { calls, failures, recent: RecentCalls::of_bytes(&bytes)?, called_ms, errors })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the figures of an earlier format, which had the last calls as Base64.
pub(crate) fn of_base64(mut figures: Value) -> Option<Value> {
    let recent = STANDARD.decode(figures["recent"].as_str()?).ok()?;
    set_member(&mut figures, "recent", hex(&recent));
    Some(figures)
}

#[cfg(test)]
mod tests;
