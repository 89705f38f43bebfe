//! Outcomes of searches, and figures of tools, in Redis. The keys are described in `learned.lua`.
//!
//! This code decides how outcomes fade and how figures add up. The result is written if nothing has changed since it was
//! read.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use nonet_search::outcomes::{LIFETIME_S, MOST_OUTCOMES, MOST_PER_DOCUMENT, Outcome, level};
use redis::pipe;
use serde::{Deserialize, Serialize};

use super::{
    super::{LastError, NamedFigures, RecentCalls, StoreError, ToolFigures, figures_db::MOST_TOOLS},
    link::{Methods, RedisLink, newer_is_there, script},
};

static METHODS: Methods = Methods::new(|| script(include_str!("learned.lua")));

/// How many outcomes beyond the maximum are tolerated, because all must be read to find the weakest.
const SLACK: usize = 100;
/// How many tools' figures are written at a time.
const AT_ONCE: usize = 50;
/// How many times a value that others change meanwhile is read again.
const TRIES: usize = 20;

/// What a store has learned.
#[derive(Debug)]
pub(super) struct LearnedKeys {
    link: Arc<RedisLink>,
    base: Arc<str>,
}

/// The number of a value's format.
#[derive(Deserialize)]
struct Versioned {
    v: u64,
}

/// An outcome without its name.
#[derive(Serialize, Deserialize)]
struct OutcomeValue {
    v: u64,
    weight: f32,
    at: u64,
}

/// Figures without their name.
#[derive(Serialize, Deserialize)]
struct FiguresValue {
    v: u64,
    calls: u64,
    failures: u64,
    /// Four bytes per call, as Base64.
    recent: String,
    called_ms: u64,
    errors: BTreeMap<String, LastError>,
}

/// A value as read.
enum StoredValue<T> {
    /// No value, or an unreadable one.
    Nothing,
    Value(T),
    /// A newer Nonet's value.
    Newer,
}

impl LearnedKeys {
    pub(super) fn new(link: Arc<RedisLink>, base: Arc<str>) -> Self {
        Self { link, base }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }

    /// Returns all outcomes. Invalid ones are skipped.
    pub(super) async fn outcomes(&self) -> Result<Vec<Outcome>, StoreError> {
        let (all,): (HashMap<String, String>,) = self.link.send(pipe().hgetall(self.key("outcomes"))).await?;
        Ok(all.iter().filter_map(|(field, value)| outcome_of(field, value)).collect())
    }

    /// Stores an outcome: of two with the same words and document, the stronger. Beyond the bounds, the weakest outcomes are
    /// removed, but never the new one, and so are outcomes too old to have an effect.
    pub(super) async fn put_outcome(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let (document, at) = (&*outcome.document, outcome.at);
        let field = field_of(outcome);
        let value = OutcomeValue { v: FORMAT, weight: outcome.weight, at };
        let value = serde_json::json!(value).to_string();
        let level_of = |weight: f32, then: u64| level(f64::from(weight), then, at);
        for _ in 0..TRIES {
            let (read,): (Option<String>,) =
                self.link.send(pipe().hget(self.key("outcomes"), &field)).await?;
            let read = read.unwrap_or_default();
            match found::<OutcomeValue>(&read) {
                StoredValue::Newer => return Ok(()),
                StoredValue::Value(kept) if level_of(kept.weight, kept.at) > level_of(outcome.weight, at) => {
                    return Ok(());
                }
                StoredValue::Value(_) | StoredValue::Nothing => {}
            }
            let mut call = METHODS.call(&self.base, "put_outcome");
            call.arg(&field).arg(document).arg(&read).arg(&value).arg(at).arg(at.saturating_sub(LIFETIME_S));
            match self.link.run::<Vec<usize>>(&call).await?[..] {
                [of_document, all] => return self.make_room(outcome, of_document, all).await,
                _ => continue,
            }
        }
        Err(self.busy())
    }

    /// Drops the weakest outcomes beyond the bounds.
    async fn make_room(&self, newest: &Outcome, of_document: usize, all: usize) -> Result<(), StoreError> {
        if of_document > MOST_PER_DOCUMENT {
            let mut call = METHODS.call(&self.base, "outcomes_of");
            call.arg(&*newest.document);
            let rows: Vec<(String, String)> = self.link.run(&call).await?;
            self.drop_weakest(rows, newest, MOST_PER_DOCUMENT).await?;
        }
        if all > MOST_OUTCOMES + SLACK {
            let (rows,): (HashMap<String, String>,) =
                self.link.send(pipe().hgetall(self.key("outcomes"))).await?;
            self.drop_weakest(rows.into_iter().collect(), newest, MOST_OUTCOMES).await?;
        }
        Ok(())
    }

    async fn drop_weakest(
        &self,
        rows: Vec<(String, String)>,
        newest: &Outcome,
        most: usize,
    ) -> Result<(), StoreError> {
        let too_many = rows.len().saturating_sub(most);
        let strength = |outcome: &Outcome| level(f64::from(outcome.weight), outcome.at, newest.at);
        let mut rows: Vec<(Outcome, (String, String))> = rows
            .into_iter()
            .filter_map(|row| Some((outcome_of(&row.0, &row.1)?, row)))
            .filter(|(outcome, _)| outcome.words != newest.words || outcome.document != newest.document)
            .collect();
        // In the order of `Outcomes`.
        rows.sort_by(|(a, _), (b, _)| -> Ordering {
            let names = || (&b.words, &b.document).cmp(&(&a.words, &a.document));
            strength(a).total_cmp(&strength(b)).then(a.at.cmp(&b.at)).then_with(names)
        });
        rows.truncate(too_many);
        for some in rows.chunks(AT_ONCE) {
            let mut call = METHODS.call(&self.base, "drop_outcomes");
            for (_, (field, value)) in some {
                call.arg(field).arg(value);
            }
            self.link.run::<()>(&call).await?;
        }
        Ok(())
    }

    /// Returns all figures. Invalid ones are skipped.
    pub(super) async fn figures(&self) -> Result<Vec<NamedFigures>, StoreError> {
        let (all,): (HashMap<String, String>,) = self.link.send(pipe().hgetall(self.key("figures"))).await?;
        let figures = all.into_iter().filter_map(|(tool, value)| match found(&value) {
            StoredValue::Value(value) => Some((tool.into(), figures_of(value)?)),
            StoredValue::Nothing | StoredValue::Newer => None,
        });
        Ok(figures.collect())
    }

    /// Adds figures to the stored ones, so that several gateways add up. Returns the sums for these tools.
    pub(super) async fn add_figures(
        &self,
        fresh: Vec<NamedFigures>,
    ) -> Result<Vec<NamedFigures>, StoreError> {
        let mut all = Vec::with_capacity(fresh.len());
        for some in fresh.chunks(AT_ONCE) {
            all.extend(self.add_some(some).await?);
        }
        Ok(all)
    }

    async fn add_some(&self, fresh: &[NamedFigures]) -> Result<Vec<NamedFigures>, StoreError> {
        let tools: Vec<&str> = fresh.iter().map(|(tool, _)| &**tool).collect();
        for _ in 0..TRIES {
            let (kept,): (Vec<Option<String>>,) =
                self.link.send(pipe().hmget(self.key("figures"), &tools)).await?;
            let mut call = METHODS.call(&self.base, "put_figures");
            call.arg(MOST_TOOLS);
            let mut all = Vec::with_capacity(fresh.len());
            for ((tool, fresh), read) in fresh.iter().zip(kept) {
                let read = read.unwrap_or_default();
                let mut figures = match found(&read) {
                    StoredValue::Value(value) => figures_of(value).unwrap_or_default(),
                    StoredValue::Nothing => ToolFigures::default(),
                    StoredValue::Newer => {
                        all.push((tool.clone(), fresh.clone()));
                        continue;
                    }
                };
                figures.add(fresh.clone());
                call.arg(&**tool).arg(read).arg(text_of(&figures)).arg(figures.called_ms);
                all.push((tool.clone(), figures));
            }
            if self.link.run(&call).await? {
                return Ok(all);
            }
        }
        Err(self.busy())
    }

    /// Postpones the expiry of everything.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        self.link.run(&METHODS.call(&self.base, "renew")).await
    }

    fn busy(&self) -> StoreError {
        let what = "changes faster than it can be read".to_owned();
        StoreError::Away { place: self.link.place.clone(), what }
    }
}

/// The format as it is written in JSON.
const FORMAT: u64 = 1;

fn found<T: for<'a> Deserialize<'a>>(text: &str) -> StoredValue<T> {
    match serde_json::from_str::<Versioned>(text) {
        Ok(Versioned { v: FORMAT }) => {
            serde_json::from_str(text).map_or(StoredValue::Nothing, StoredValue::Value)
        }
        Ok(_) => {
            newer_is_there();
            StoredValue::Newer
        }
        Err(_) => StoredValue::Nothing,
    }
}

/// Returns the name of an outcome: `LENGTH:DOCUMENT:WORDS`.
fn field_of(outcome: &Outcome) -> String {
    format!("{}:{}:{}", outcome.document.len(), outcome.document, serde_json::json!(outcome.words))
}

fn outcome_of(field: &str, value: &str) -> Option<Outcome> {
    let (length, rest) = field.split_once(':')?;
    let (document, words) = rest.split_at_checked(length.parse().ok()?)?;
    let StoredValue::Value(OutcomeValue { weight, at, .. }) = found(value) else { return None };
    let words = serde_json::from_str(words.strip_prefix(':')?).ok()?;
    let outcome = Outcome { words, document: document.into(), weight, at };
    outcome.is_sound().then_some(outcome)
}

fn text_of(figures: &ToolFigures) -> String {
    let ToolFigures { calls, failures, recent, called_ms, errors } = figures;
    let recent = STANDARD.encode(recent.to_bytes());
    let (calls, failures, called_ms, errors) = (*calls, *failures, *called_ms, errors.clone());
    serde_json::json!(FiguresValue { v: FORMAT, calls, failures, recent, called_ms, errors }).to_string()
}

fn figures_of(value: FiguresValue) -> Option<ToolFigures> {
    let FiguresValue { calls, failures, recent, called_ms, errors, .. } = value;
    let recent = RecentCalls::of_bytes(&STANDARD.decode(recent).ok()?)?;
    Some(ToolFigures { calls, failures, recent, called_ms, errors })
}
