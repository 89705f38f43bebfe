//! Trusted definitions of servers, and waiting ones, in `pins.db`: by their hash, with their text.
//!
//! A separate file, because `nonet forget` empties the others, and to forget a pin is to trust whatever the server lists
//! next.

use std::path::Path;

use rusqlite::{Connection, Row, Transaction, params};

use super::{
    PinStore, Removable, StoreError,
    file::{Database, DbFormat},
};

/// The maximum size of a server's texts, in bytes. Beyond it, only hashes are stored.
pub(super) const MOST_TEXT: i64 = 32 << 20;

const ROWS: &str = "SELECT kind, name, trusted, by_user, waiting, since_ms, told, server, trusted_text, waiting_text FROM pins";

const FORMAT: DbFormat = DbFormat {
    name: "pins.db",
    layout: "",
    steps: &[
        // `trusted` and `waiting` are hashes. `config` is the path of a servers.toml, `since_ms` in milliseconds since 1970.
        "CREATE TABLE pins (
            number INTEGER PRIMARY KEY,
            config TEXT NOT NULL,
            server TEXT NOT NULL,
            kind TEXT NOT NULL,
            name TEXT NOT NULL,
            trusted TEXT,
            trusted_text TEXT,
            by_user INTEGER NOT NULL,
            waiting TEXT,
            waiting_text TEXT,
            since_ms INTEGER NOT NULL CHECK (since_ms >= 0),
            told INTEGER NOT NULL,
            UNIQUE (config, server, kind, name)
        ) STRICT",
    ],
    set_up,
    reads: &[ROWS],
    most_damaged: 9,
};

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // A server that keeps changing its list causes a write per change; none of them waits for the disk.
    connection.pragma_update(None, "synchronous", "normal")
}

/// The kind of a pinned definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinKind {
    /// The instructions of the server, without a name.
    Instructions,
    /// A tool.
    Tool,
    /// A prompt.
    Prompt,
}

impl PinKind {
    /// Returns the kind as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Tool => "tool",
            Self::Prompt => "prompt",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Instructions, Self::Tool, Self::Prompt].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The trusted hash of one definition, and the waiting one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The name of the server in the configuration.
    pub server: String,
    /// A tool and a prompt of the same name have separate pins.
    pub kind: PinKind,
    /// The server's own name for it; empty for its instructions.
    pub name: String,
    /// The hash of the trusted definition; `None` if none has been trusted.
    pub trusted: Option<String>,
    /// Whether the user trusted it, rather than the first sight only.
    pub by_user: bool,
    /// The hash of the definition that the server lists instead.
    pub waiting: Option<String>,
    /// When it began to wait, in milliseconds since 1970.
    pub since_ms: u64,
    /// Whether the waiting change has been reported.
    pub told: bool,
}

/// The texts of a pin, where they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinTexts {
    /// The trusted definition, as JSON, shortened if it is large; `None` if it is not stored.
    pub trusted: Option<String>,
    /// The waiting definition, as JSON, shortened if it is large; `None` if it is not stored.
    pub waiting: Option<String>,
}

/// A change of one pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinWrite {
    /// The kind of the definition whose pin changes.
    pub kind: PinKind,
    /// The server's own name for it; empty for its instructions.
    pub name: String,
    /// What happens to the pin.
    pub to: PinStep,
}

/// A step that changes a pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinStep {
    /// Trusted on first sight; ignored if there is a pin already.
    First {
        /// The hash of the definition, in hex.
        hash: String,
        /// The definition, as JSON, shortened if it is large.
        text: String,
    },
    /// Waits to be trusted.
    Wait {
        /// The hash of the definition, in hex.
        hash: String,
        /// The definition, as JSON, shortened if it is large.
        text: String,
    },
    /// Trusted because the lock file has it.
    Vouch {
        /// The hash of the definition, in hex.
        hash: String,
        /// The definition, as JSON, shortened if it is large.
        text: String,
    },
    /// The server lists the trusted definition again.
    Return,
}

/// An open file. Several gateways, and several threads of one, may use it at the same time. Every call blocks.
#[derive(Debug)]
pub struct PinsDb {
    database: Database,
}

impl PinsDb {
    /// Returns whether a folder has the file.
    pub fn exists(folder: &Path) -> bool {
        folder.join(FORMAT.name).exists()
    }

    /// Opens the file in a folder; creates both, readable only by their owner, if they do not exist.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self { database: Database::open(folder, &FORMAT)? })
    }

    /// Keeps everything in memory, until the value is dropped.
    pub fn in_memory() -> Result<Self, StoreError> {
        Ok(Self { database: Database::in_memory(&FORMAT)? })
    }

    /// Returns a number that changes when another process, or another connection, changes the file.
    pub fn version(&self) -> Result<i64, StoreError> {
        self.database.with(|connection| connection.query_row("PRAGMA data_version", [], |row| row.get(0)))
    }

    /// Returns the pins of a configuration's server.
    pub fn of_server(&self, config: &str, server: &str) -> Result<Vec<Pin>, StoreError> {
        let all = format!("{ROWS} WHERE config = ?1 AND server = ?2 ORDER BY kind, name");
        self.read(&all, &[&config, &server], |pin, _| pin)
    }

    /// Returns the first `most` waiting pins of a configuration, with their texts.
    pub fn waiting(&self, config: &str, most: usize) -> Result<Vec<(Pin, PinTexts)>, StoreError> {
        let all =
            format!("{ROWS} WHERE config = ?1 AND waiting IS NOT NULL ORDER BY server, kind, name LIMIT ?2");
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.read(&all, &[&config, &most], |pin, texts| (pin, texts))
    }

    /// Returns how many pins of a configuration wait.
    pub fn count_waiting(&self, config: &str) -> Result<usize, StoreError> {
        let count = "SELECT count(*) FROM pins WHERE config = ?1 AND waiting IS NOT NULL";
        let count: i64 =
            self.database.with(|connection| connection.query_row(count, [config], |row| row.get(0)))?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// Returns the texts of one pin.
    pub fn texts(
        &self,
        config: &str,
        server: &str,
        kind: PinKind,
        name: &str,
    ) -> Result<PinTexts, StoreError> {
        let one = format!("{ROWS} WHERE config = ?1 AND server = ?2 AND kind = ?3 AND name = ?4");
        let found = self.read(&one, &[&config, &server, &kind.as_str(), &name], |_, texts| texts)?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    fn read<T>(
        &self,
        query: &str,
        params: &[&dyn rusqlite::ToSql],
        take: impl Fn(Pin, PinTexts) -> T,
    ) -> Result<Vec<T>, StoreError> {
        self.database.with(|connection| {
            let mut statement = connection.prepare(query)?;
            let mut rows = statement.query(params)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                if let Some((pin, texts)) = read_pin(row)? {
                    found.push(take(pin, texts));
                }
            }
            Ok(found)
        })
    }

    /// Writes changes to a server's pins, all or none.
    pub fn write(
        &self,
        config: &str,
        server: &str,
        writes: &[PinWrite],
        now_ms: u64,
    ) -> Result<(), StoreError> {
        let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
        self.database.write(|transaction| {
            let kept = "SELECT CAST(total(length(trusted_text)) + total(length(waiting_text)) AS INTEGER) FROM pins
                WHERE config = ?1 AND server = ?2";
            let mut bytes: i64 = transaction.query_row(kept, [config, server], |row| row.get(0))?;
            let mut fits = |text: &str| {
                let len = i64::try_from(text.len()).unwrap_or(i64::MAX);
                let fits = bytes.saturating_add(len) <= MOST_TEXT;
                bytes += if fits { len } else { 0 };
                fits.then(|| text.to_string())
            };
            let mut first = transaction.prepare(
                "INSERT INTO pins (config, server, kind, name, trusted, trusted_text, by_user, since_ms, told)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, 0) ON CONFLICT DO NOTHING",
            )?;
            let mut wait = transaction.prepare(
                "INSERT INTO pins (config, server, kind, name, by_user, waiting, waiting_text, since_ms, told)
                VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, 0) ON CONFLICT (config, server, kind, name) DO UPDATE
                SET waiting = ?5, waiting_text = ?6, since_ms = ?7, told = 0 WHERE waiting IS NOT ?5",
            )?;
            let mut vouch = transaction.prepare(
                "INSERT INTO pins (config, server, kind, name, trusted, trusted_text, by_user, since_ms, told)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, 0) ON CONFLICT (config, server, kind, name) DO UPDATE
                SET trusted = ?5, trusted_text = ?6, by_user = 0, waiting = NULL, waiting_text = NULL, since_ms = ?7, told = 0",
            )?;
            let mut back = transaction.prepare(
                "UPDATE pins SET waiting = NULL, waiting_text = NULL, told = 0
                WHERE config = ?1 AND server = ?2 AND kind = ?3 AND name = ?4",
            )?;
            for PinWrite { kind, name, to } in writes {
                let kind = kind.as_str();
                match to {
                    PinStep::First { hash, text } => {
                        first.execute(params![config, server, kind, name, hash, fits(text), now])?
                    }
                    PinStep::Wait { hash, text } => {
                        wait.execute(params![config, server, kind, name, hash, fits(text), now])?
                    }
                    PinStep::Vouch { hash, text } => {
                        vouch.execute(params![config, server, kind, name, hash, fits(text), now])?
                    }
                    PinStep::Return => back.execute(params![config, server, kind, name])?,
                };
            }
            Ok(())
        })
    }

    /// Trusts waiting definitions that are still as the user has seen them. Returns how many were.
    pub fn trust(&self, config: &str, seen: &[Pin], now_ms: u64) -> Result<usize, StoreError> {
        let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
        self.database.write(|transaction| {
            let trust =
                "UPDATE pins SET trusted = waiting, trusted_text = waiting_text, by_user = 1, waiting = NULL,
                waiting_text = NULL, since_ms = ?6, told = 0
                WHERE config = ?1 AND server = ?2 AND kind = ?3 AND name = ?4 AND waiting = ?5";
            each(transaction, trust, config, seen, now)
        })
    }

    /// Notes that these changes were reported. Returns how many of them still wait.
    pub fn told(&self, config: &str, seen: &[Pin]) -> Result<usize, StoreError> {
        self.database.write(|transaction| {
            let told = "UPDATE pins SET told = 1
                WHERE config = ?1 AND server = ?2 AND kind = ?3 AND name = ?4 AND waiting = ?5 AND ?6 = 0";
            each(transaction, told, config, seen, 0)
        })
    }

    /// Returns how many pins there are, of all configurations.
    pub fn count(&self) -> Result<usize, StoreError> {
        let count = "SELECT count(*) FROM pins";
        let number =
            self.database.with(|connection| connection.query_row(count, [], |row| row.get::<_, i64>(0)))?;
        Ok(usize::try_from(number).unwrap_or_default())
    }

    /// Removes all pins of all configurations. Returns how many.
    pub fn forget(&self) -> Result<usize, StoreError> {
        self.database.write(|transaction| transaction.execute("DELETE FROM pins", []))
    }
}

/// The pins of one configuration in the file.
#[derive(Debug)]
pub struct ConfigPins {
    db: PinsDb,
    config: String,
}

impl PinsDb {
    /// Returns the pins of a configuration, by the path of its file.
    pub fn of_config(self, config: &str) -> ConfigPins {
        ConfigPins { db: self, config: config.into() }
    }
}

impl Removable for ConfigPins {
    fn is_gone(&self) -> bool {
        self.db.database.is_gone()
    }
}

impl PinStore for ConfigPins {
    fn version(&self) -> Result<i64, StoreError> {
        self.db.version()
    }

    fn of_server(&self, server: &str) -> Result<Vec<Pin>, StoreError> {
        self.db.of_server(&self.config, server)
    }

    fn waiting(&self, most: usize) -> Result<Vec<(Pin, PinTexts)>, StoreError> {
        self.db.waiting(&self.config, most)
    }

    fn count_waiting(&self) -> Result<usize, StoreError> {
        self.db.count_waiting(&self.config)
    }

    fn texts(&self, pin: &Pin) -> Result<PinTexts, StoreError> {
        self.db.texts(&self.config, &pin.server, pin.kind, &pin.name)
    }

    fn write(&self, server: &str, writes: &[PinWrite], now_ms: u64) -> Result<(), StoreError> {
        self.db.write(&self.config, server, writes, now_ms)
    }

    fn trust(&self, seen: &[Pin], now_ms: u64) -> Result<usize, StoreError> {
        self.db.trust(&self.config, seen, now_ms)
    }

    fn told(&self, seen: &[Pin]) -> Result<usize, StoreError> {
        self.db.told(&self.config, seen)
    }
}

/// Runs a statement for each pin that is still as it was seen.
fn each(
    transaction: &Transaction,
    sql: &str,
    config: &str,
    seen: &[Pin],
    last: i64,
) -> rusqlite::Result<usize> {
    let mut statement = transaction.prepare(sql)?;
    let mut changed = 0;
    for pin in seen {
        let Pin { server, kind, name, waiting, .. } = pin;
        changed += statement.execute(params![config, server, kind.as_str(), name, waiting, last])?;
    }
    Ok(changed)
}

/// Returns the pin of a row; `None` if the row is invalid.
fn read_pin(row: &Row) -> rusqlite::Result<Option<(Pin, PinTexts)>> {
    let Some(kind) = PinKind::of(&row.get::<_, String>(0)?) else { return Ok(None) };
    let pin = Pin {
        kind,
        name: row.get(1)?,
        trusted: row.get(2)?,
        by_user: row.get(3)?,
        waiting: row.get(4)?,
        since_ms: row.get::<_, i64>(5)?.unsigned_abs(),
        told: row.get(6)?,
        server: row.get(7)?,
    };
    Ok(Some((pin, PinTexts { trusted: row.get(8)?, waiting: row.get(9)? })))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::folder, *};

    const CONFIG: &str = "/etc/servers.toml";

    fn write(db: &PinsDb, name: &str, to: PinStep) {
        let write = PinWrite { kind: PinKind::Tool, name: name.into(), to };
        db.write(CONFIG, "a", &[write], 5).expect("written");
    }

    fn only(db: &PinsDb) -> Pin {
        let mut pins = db.of_server(CONFIG, "a").expect("readable");
        assert_eq!(pins.len(), 1, "{pins:?}");
        pins.remove(0)
    }

    #[test]
    fn what_waits_is_trusted_as_it_was_seen_only() {
        let folder = folder();
        let db = PinsDb::open(folder.path()).expect("opens");
        let step = |hash: &str| (hash.to_string(), format!("text {hash}"));
        let (hash, text) = step("1");
        write(&db, "t", PinStep::First { hash, text });
        let (hash, text) = step("2");
        write(&db, "t", PinStep::First { hash, text });
        assert_eq!(only(&db).trusted.as_deref(), Some("1"), "the first sight counts");
        let (hash, text) = step("2");
        write(&db, "t", PinStep::Wait { hash, text });
        let seen = only(&db);
        assert_eq!((seen.waiting.as_deref(), seen.told), (Some("2"), false));
        assert_eq!(db.told(CONFIG, std::slice::from_ref(&seen)).expect("written"), 1);
        assert!(only(&db).told);
        let (hash, text) = step("3");
        write(&db, "t", PinStep::Wait { hash, text });
        assert!(!only(&db).told, "of another definition nobody was told");
        assert_eq!(db.trust(CONFIG, &[seen], 6).expect("written"), 0, "it is another one now");
        let seen = only(&db);
        assert_eq!(db.trust("/other", std::slice::from_ref(&seen), 6).expect("written"), 0);
        assert_eq!(db.trust(CONFIG, &[seen], 6).expect("written"), 1);
        drop(db);
        let db = PinsDb::open(folder.path()).expect("opens");
        let pin = only(&db);
        assert_eq!((pin.trusted.as_deref(), pin.by_user, pin.waiting.as_deref()), (Some("3"), true, None));
        let texts = db.texts(CONFIG, "a", PinKind::Tool, "t").expect("readable");
        assert_eq!(texts, PinTexts { trusted: Some("text 3".into()), waiting: None });
        assert_eq!(db.waiting(CONFIG, 100).expect("readable"), []);
    }

    #[test]
    fn a_definition_that_comes_back_waits_no_longer() {
        let db = PinsDb::in_memory().expect("opens");
        write(&db, "t", PinStep::First { hash: "1".into(), text: "one".into() });
        write(&db, "t", PinStep::Wait { hash: "2".into(), text: "two".into() });
        assert_eq!(db.waiting(CONFIG, 100).expect("readable").len(), 1);
        write(&db, "t", PinStep::Return);
        assert_eq!(db.waiting(CONFIG, 100).expect("readable"), []);
        write(&db, "t", PinStep::Vouch { hash: "3".into(), text: "three".into() });
        assert_eq!(only(&db).trusted.as_deref(), Some("3"));
        assert_eq!(db.forget().expect("forgotten"), 1);
    }

    #[test]
    fn texts_of_a_server_have_a_bound_and_hashes_stay() {
        let db = PinsDb::in_memory().expect("opens");
        let text = "x".repeat(MOST_TEXT as usize / 2 + 1);
        for name in ["a", "b"] {
            write(&db, name, PinStep::First { hash: name.into(), text: text.clone() });
        }
        let kept =
            |name: &str| db.texts(CONFIG, "a", PinKind::Tool, name).expect("readable").trusted.is_some();
        assert_eq!((kept("a"), kept("b")), (true, false));
        assert_eq!(db.of_server(CONFIG, "a").expect("readable")[1].trusted.as_deref(), Some("b"));
    }
}
