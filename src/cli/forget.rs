//! `nonet forget`: empties the store.

use anyhow::Context;

use super::{OK, show};
use crate::store::{self, Forgotten, PinsDb};

/// Deletes search outcomes, figures of tools, kept results, tasks, facts and other records: watches, schedules, goals, notices. A running
/// gateway continues with its copies of outcomes, figures and results in memory.
/// Which definitions are trusted is deleted only by itself: whoever forgets it trusts whatever servers list next.
pub(super) fn run(trust: bool) -> anyhow::Result<u8> {
    let folder = store::folder().context("there is no home folder, so nothing is stored")?;
    if trust {
        let pins = if PinsDb::exists(&folder) { PinsDb::open(&folder)?.forget()? } else { 0 };
        say!(
            "deleted the trust in {} from {}; what servers list next is trusted at first sight",
            show::count(pins as u64, "definition"),
            folder.display()
        );
        return Ok(OK);
    }
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
    if PinsDb::exists(&folder) {
        say!("kept which definitions of servers are trusted; `nonet forget --trust` deletes that");
    }
    Ok(OK)
}
