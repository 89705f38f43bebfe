//! The file `store.db`, with the outcomes of searches.

use std::path::Path;

use nonet_search::outcomes::{self, LIFETIME_S, MOST_OUTCOMES, MOST_PER_DOCUMENT, Outcome};
use rusqlite::{Connection, Row, functions::FunctionFlags, params};

use super::{
    Removable, StoreError,
    figures_db::{FIGURES, TABLE},
    file::{Database, DbFormat},
};

const OUTCOMES: &str = "SELECT document, words, weight, at FROM outcomes ORDER BY document, words";

pub(super) const FORMAT: DbFormat = DbFormat {
    name: "store.db",
    layout: "",
    steps: &[
        // `words` is a JSON array of strings, `at` in seconds since 1970.
        "CREATE TABLE outcomes (
            document TEXT NOT NULL,
            words TEXT NOT NULL,
            weight REAL NOT NULL CHECK (weight > 0),
            at INTEGER NOT NULL CHECK (at >= 0),
            PRIMARY KEY (document, words)
        ) STRICT, WITHOUT ROWID",
        TABLE,
    ],
    set_up,
    reads: &[OUTCOMES, FIGURES],
    most_damaged: 9,
};

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // A user's searches are overwritten when they are deleted.
    connection.pragma_update(None, "secure_delete", true)?;
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("level", 3, flags, |values| {
        let (weight, at, now): (f64, i64, i64) = (values.get(0)?, values.get(1)?, values.get(2)?);
        Ok(outcomes::level(weight, at.unsigned_abs(), now.unsigned_abs()))
    })
}

/// An open file. Several gateways, and several threads of one, may use it at the same time.
///
/// A stored outcome is visible to everybody when the call returns, and survives the end of this process, however it ends. A
/// power cut may lose the last few seconds, but never damages the rest.
#[derive(Debug)]
pub(super) struct OutcomesDb {
    pub(super) database: Database,
}

impl Removable for OutcomesDb {
    fn is_gone(&self) -> bool {
        self.database.is_gone()
    }
}

impl OutcomesDb {
    /// Opens the file in a folder; creates both, readable only by their owner, if they do not exist. Blocks.
    pub(crate) fn open(folder: &Path) -> Result<OutcomesDb, StoreError> {
        Ok(OutcomesDb { database: Database::open(folder, &FORMAT)? })
    }

    /// Returns all outcomes; 5,000 take five milliseconds. Invalid rows are skipped, with a warning.
    pub(crate) fn outcomes(&self) -> Result<Vec<Outcome>, StoreError> {
        self.database.with(|connection| {
            let mut statement = connection.prepare(OUTCOMES)?;
            let mut rows = statement.query([])?;
            let (mut outcomes, mut unreadable) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                match read_outcome(row) {
                    Some(outcome) => outcomes.push(outcome),
                    None => unreadable += 1,
                }
            }
            if unreadable > 0 {
                let file = self.database.file.display();
                tracing::warn!(%file, unreadable, "unreadable outcomes are left out");
            }
            Ok(outcomes)
        })
    }

    /// Stores an outcome; takes at most two milliseconds if nobody else writes.
    ///
    /// Of two outcomes with the same words and document, the stronger is kept: two gateways that learn the same at the same
    /// time count it once. Then the bounds of [`Outcomes`] are applied: the weakest outcomes are removed first, but never the
    /// new one, and so are outcomes too old to have an effect.
    ///
    /// [`Outcomes`]: nonet_search::Outcomes
    pub(crate) fn put_outcome(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let document: &str = &outcome.document;
        let words = serde_json::json!(outcome.words).to_string();
        let now = i64::try_from(outcome.at).unwrap_or(i64::MAX);
        self.database.write(|transaction| {
            transaction.execute(
                "INSERT INTO outcomes (document, words, weight, at) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET weight = excluded.weight, at = excluded.at
                 WHERE level(excluded.weight, excluded.at, ?4) >= level(outcomes.weight, outcomes.at, ?4)",
                params![document, words, outcome.weight, now],
            )?;
            // Outcomes from the future stay: a clock that starts in 1970 would remove everything.
            transaction
                .execute("DELETE FROM outcomes WHERE at < ?1 - ?2", params![now, LIFETIME_S as i64])?;
            let count = "SELECT count(*) FROM outcomes WHERE ?1 IS NULL OR document = ?1";
            for (within, most) in [(Some(document), MOST_PER_DOCUMENT), (None, MOST_OUTCOMES)] {
                let found: i64 = transaction.query_row(count, [within], |row| row.get(0))?;
                if found > most as i64 {
                    // Ordered as `Outcomes` orders them.
                    transaction.execute(
                        "DELETE FROM outcomes WHERE (document, words) IN (
                            SELECT document, words FROM outcomes
                            WHERE (?1 IS NULL OR document = ?1) AND (document, words) <> (?2, ?3)
                            ORDER BY level(weight, at, ?4), at, words DESC, document DESC LIMIT ?5)",
                        params![within, document, words, now, found - most as i64],
                    )?;
                }
            }
            Ok(())
        })
    }

    /// Removes all outcomes and figures, on the disk as well.
    pub(crate) fn forget(&self) -> Result<(), StoreError> {
        self.database
            .write(|transaction| transaction.execute_batch("DELETE FROM outcomes; DELETE FROM figures"))?;
        // Deleted rows are overwritten in the file; the log is emptied too, unless it is being read.
        self.database
            .with(|connection| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
    }
}

/// Returns the outcome of a row; `None` if the row is invalid.
fn read_outcome(row: &Row) -> Option<Outcome> {
    let words: String = row.get(1).ok()?;
    let at: i64 = row.get(3).ok()?;
    let outcome = Outcome {
        document: row.get::<_, String>(0).ok()?.into(),
        words: serde_json::from_str(&words).ok()?,
        weight: row.get(2).ok()?,
        at: at.try_into().ok()?,
    };
    outcome.is_sound().then_some(outcome)
}

#[cfg(test)]
mod tests;
