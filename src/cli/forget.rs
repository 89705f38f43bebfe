//! `nonet forget`: empties the store.

use std::time::Duration;

use anyhow::Context;

use super::{OK, show};
use crate::store::{self, Counts, Kept, Limits};

/// Deletes search outcomes, kept results and tasks. A running gateway continues with its copies in memory.
pub(super) fn run() -> anyhow::Result<u8> {
    let folder = store::folder().context("there is no home folder, so nothing is stored")?;
    let store = store::Store::open(&folder)?;
    let outcomes = store.outcomes()?.len();
    store.forget_outcomes()?;
    let kept = Kept::open(&folder, Limits { bytes: u64::MAX, age: Duration::MAX })?;
    let Counts { entries, bytes } = kept.counts()?;
    kept.forget()?;
    say!(
        "deleted {} and {} ({}) from {}",
        show::count(outcomes as u64, "search outcome"),
        show::count(entries, "kept result"),
        show::count(bytes, "byte"),
        folder.display()
    );
    Ok(OK)
}
