//! Figures about the calls of each tool, in `store.db`.

use rusqlite::{OptionalExtension, Row, params};

use super::{
    StoreError,
    figures::{NamedFigures, RecentCalls, ToolFigures},
    outcomes_db::OutcomesDb,
};

/// The maximum number of tools with figures. The least recently called ones are dropped first.
pub(super) const MOST_TOOLS: usize = 10_000;

/// `recent` holds four bytes per call, `errors` is a JSON object by owner, `called` is in milliseconds since 1970.
pub(super) const TABLE: &str = "CREATE TABLE figures (
    tool TEXT NOT NULL PRIMARY KEY,
    calls INTEGER NOT NULL CHECK (calls >= 0),
    failures INTEGER NOT NULL CHECK (failures >= 0),
    recent BLOB NOT NULL,
    called INTEGER NOT NULL CHECK (called >= 0),
    errors TEXT NOT NULL
) STRICT";
pub(super) const FIGURES: &str = "SELECT tool, calls, failures, recent, called, errors FROM figures";
const OF_TOOL: &str = "SELECT tool, calls, failures, recent, called, errors FROM figures WHERE tool = ?1";

impl OutcomesDb {
    /// Returns all figures. Invalid rows are skipped, with a warning.
    pub(crate) fn figures(&self) -> Result<Vec<NamedFigures>, StoreError> {
        self.database.with(|connection| {
            let mut statement = connection.prepare(FIGURES)?;
            let mut rows = statement.query([])?;
            let (mut figures, mut unreadable) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                match read_figures(row) {
                    Some(read) => figures.push(read),
                    None => unreadable += 1,
                }
            }
            if unreadable > 0 {
                let file = self.database.file.display();
                tracing::warn!(%file, unreadable, "unreadable figures of tools are left out");
            }
            Ok(figures)
        })
    }

    /// Adds figures to the stored ones, so that several gateways add up. Returns the sums for these tools.
    pub(crate) fn add_figures(&self, fresh: Vec<NamedFigures>) -> Result<Vec<NamedFigures>, StoreError> {
        self.database.write(|transaction| {
            let mut read = transaction.prepare(OF_TOOL)?;
            let mut write =
                transaction.prepare("INSERT OR REPLACE INTO figures VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            let mut all = Vec::with_capacity(fresh.len());
            for (tool, fresh) in fresh {
                let kept = read.query_row([&*tool], |row| Ok(read_figures(row))).optional()?.flatten();
                let mut figures = kept.map(|(_, figures)| figures).unwrap_or_default();
                figures.add(fresh);
                write.execute(params![
                    &*tool,
                    sql(figures.calls),
                    sql(figures.failures),
                    figures.recent.to_bytes(),
                    sql(figures.called_ms),
                    serde_json::json!(figures.errors).to_string(),
                ])?;
                all.push((tool, figures));
            }
            let count: i64 = transaction.query_row("SELECT count(*) FROM figures", [], |row| row.get(0))?;
            let too_many = count - MOST_TOOLS as i64;
            if too_many > 0 {
                let oldest = "DELETE FROM figures WHERE tool IN (SELECT tool FROM figures ORDER BY called, tool LIMIT ?1)";
                transaction.execute(oldest, [too_many])?;
            }
            Ok(all)
        })
    }
}

fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the figures of a row; `None` if the row is invalid.
fn read_figures(row: &Row) -> Option<NamedFigures> {
    let number = |at: usize| row.get::<_, i64>(at).ok()?.try_into().ok();
    let figures = ToolFigures {
        calls: number(1)?,
        failures: number(2)?,
        recent: RecentCalls::of_bytes(&row.get::<_, Vec<u8>>(3).ok()?)?,
        called_ms: number(4)?,
        errors: serde_json::from_str(&row.get::<_, String>(5).ok()?).ok()?,
    };
    Some((row.get::<_, String>(0).ok()?.into(), figures))
}

#[cfg(test)]
mod tests {
    use std::{fs, thread, time::Duration};

    use super::{
        super::{
            figures::LastError,
            tests::{NOW, folder, names, open},
        },
        *,
    };

    /// Returns one call, which failed if its duration is zero.
    fn call(tool: &str, ms: u64, called_ms: u64) -> NamedFigures {
        let mut figures = ToolFigures { calls: 1, called_ms, ..ToolFigures::default() };
        match ms {
            0 => {
                figures.failures = 1;
                figures.recent.failed();
                let (code, message) = ("tool_error".into(), "xylophone out of order".into());
                let error = LastError { code, message, version: "1".into(), at_ms: called_ms };
                figures.put_error("reader".into(), error);
            }
            ms => figures.recent.succeeded(Duration::from_millis(ms)),
        }
        (tool.into(), figures)
    }

    #[test]
    fn figures_survive_a_reopen_and_add_up() {
        let folder = folder();
        let written = {
            let store = open(&folder);
            assert_eq!(store.figures().expect("readable"), []);
            store.add_figures(vec![call("a.b", 5, NOW), call("查.x\"'", 7, NOW)]).expect("written");
            store.add_figures(vec![call("a.b", 0, NOW + 1)]).expect("written")
        };
        let (_, figures) = &written[0];
        assert_eq!((figures.calls, figures.failures, figures.recent.count()), (2, 1, 2));
        let kept = open(&folder).figures().expect("readable");
        assert!(kept.len() == 2 && kept.contains(&written[0]), "{kept:?}");
        assert_eq!(names(&folder), ["store.db", "store.lock"]);
    }

    #[test]
    fn two_gateways_add_up() {
        let folder = folder();
        thread::scope(|scope| {
            for ms in [0, 4] {
                let folder = &folder;
                scope.spawn(move || {
                    let store = open(folder);
                    for _ in 0..30 {
                        store.add_figures(vec![call("a.b", ms, NOW)]).expect("written");
                    }
                });
            }
        });
        let kept = open(&folder).figures().expect("readable");
        let (_, figures) = &kept[0];
        assert_eq!((figures.calls, figures.failures, figures.recent.count()), (60, 30, 60));
        assert_eq!(figures.recent.times_us().collect::<Vec<_>>(), [4_000; 30]);
    }

    #[test]
    fn tools_that_were_not_called_for_the_longest_time_go_first() {
        let folder = folder();
        let store = open(&folder);
        let many = (0..MOST_TOOLS).map(|number| call(&format!("many.t{number}"), 1, NOW + number as u64));
        store.add_figures(many.collect()).expect("written");
        store.add_figures(vec![call("many.t0", 1, 3 * NOW), call("new.tool", 1, 0)]).expect("written");
        store.add_figures(vec![call("newer.tool", 1, 2 * NOW)]).expect("written");
        let kept = store.figures().expect("readable");
        let has = |name: &str| kept.iter().any(|(tool, _)| &**tool == name);
        assert_eq!(kept.len(), MOST_TOOLS);
        assert!(has("many.t0") && has("newer.tool") && !has("many.t1") && !has("new.tool"));
    }

    #[test]
    fn rows_that_are_no_figures_are_left_out_and_replaced() {
        let folder = folder();
        let store = open(&folder);
        for row in ["('a.b', 1, 0, x'010203', 1, '{}')", "('c.d', 1, 0, x'', 1, '[]')"] {
            let insert = format!("INSERT INTO figures VALUES {row}");
            store.database.with(|connection| connection.execute_batch(&insert)).expect(row);
        }
        assert_eq!(store.figures().expect("readable"), []);
        store.add_figures(vec![call("a.b", 5, NOW)]).expect("written");
        assert_eq!(store.figures().expect("readable"), [call("a.b", 5, NOW)]);
    }

    #[test]
    fn forgotten_figures_are_gone_from_the_disk() {
        let folder = folder();
        let store = open(&folder);
        store.add_figures(vec![call("a.b", 0, NOW)]).expect("written");
        store.forget().expect("forgotten");
        assert_eq!(store.figures().expect("readable"), []);
        for name in names(&folder) {
            let bytes = fs::read(folder.path().join(&name)).expect("readable");
            assert!(!bytes.windows(8).any(|window| window == b"xylophon"), "{name}");
        }
    }
}
