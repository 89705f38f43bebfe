//! `nonet forget`: empties the store.

use anyhow::Context;

use super::{OK, show};
use crate::store::{self, Forgotten};

/// Deletes search outcomes, figures of tools, kept results, tasks, facts and other records: watches, schedules, goals, notices. A running
/// gateway continues with its copies of outcomes, figures and results in memory.
pub(super) fn run() -> anyhow::Result<u8> {
    let folder = store::folder().context("there is no home folder, so nothing is stored")?;
    let Forgotten { outcomes, tools, kept, facts, records } = store::forget(&folder)?;
    say!(
        "deleted {}, the figures of {}, {} ({}), {} and {} from {}",
        show::count(outcomes as u64, "search outcome"),
        show::count(tools as u64, "tool"),
        show::count(kept.entries, "kept result"),
        show::count(kept.bytes, "byte"),
        show::count(facts, "fact"),
        show::count(records, "other record"),
        folder.display()
    );
    Ok(OK)
}
