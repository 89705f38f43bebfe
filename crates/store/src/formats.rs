//! The store's SQLite files: their layouts, and the steps from each version of a format to the next.

use rusqlite::Connection;

use super::file::DbFormat;

const ROWS: &str = include_str!("rows.sql");
const COUNTERS: &str = "CREATE TABLE counters (name TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT";
/// Statements that name every column.
pub(super) const READ_ROWS: &str = "SELECT kind, owner, id, body, length(CAST(body AS BLOB)), due_ms, revision, put_ms, holder, number, config FROM records";
const READ_COUNTERS: &str = "SELECT name, count FROM counters";
const READ_CHUNKS: &str = "SELECT entry, n, data, until_ms FROM chunks";
const READ_CLOCK: &str = "SELECT aged_ms, seen_ms FROM clock";
/// How many bytes of the log stay on disk after they were moved into the file.
pub(super) const LONGEST_LOG: i64 = 16 << 20;

/// Watches, schedules, facts, goals, parked work, notices and approvals.
pub(super) static RECORDS: DbFormat = DbFormat {
    name: "records.db",
    what: "watches, schedules, facts and notices",
    layout: "PRAGMA auto_vacuum = incremental",
    steps: &[
        ROWS,
        "CREATE TABLE changes (owner TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT;
        CREATE TABLE vectors (record INTEGER PRIMARY KEY, model TEXT NOT NULL, vector BLOB NOT NULL) STRICT;
        CREATE TRIGGER fact_put AFTER INSERT ON records WHEN new.kind = 'fact' BEGIN
            INSERT INTO changes VALUES (new.owner, random() & 0x3fffffffffffffff)
                ON CONFLICT (owner) DO UPDATE SET count = count + 1;
        END;
        CREATE TRIGGER fact_changed AFTER UPDATE OF body ON records WHEN new.kind = 'fact' BEGIN
            UPDATE changes SET count = count + 1 WHERE owner = new.owner;
            DELETE FROM vectors WHERE record = new.number;
        END;
        CREATE TRIGGER fact_gone AFTER DELETE ON records WHEN old.kind = 'fact' BEGIN
            UPDATE changes SET count = count + 1 WHERE owner = old.owner;
            DELETE FROM vectors WHERE record = old.number;
        END",
        COUNTERS,
        include_str!("formats/records_4.sql"),
    ],
    // Facts and schedules are few and precious, so a power cut must lose none of them.
    set_up: |connection| overwrites_deleted(connection, "full"),
    reads: &[READ_ROWS, READ_COUNTERS],
    most_damaged: 9,
};

/// Results, and jobs with their results.
pub(super) static KEPT: DbFormat = DbFormat {
    name: "kept.db",
    what: "large results and tasks",
    // Freed pages can be returned. Pages are large: a 50 MB value is written in two thirds of the time, and
    // the check on opening takes half.
    layout: "PRAGMA page_size = 16384; PRAGMA auto_vacuum = incremental",
    steps: &[
        "CREATE TABLE entries (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            profile TEXT,
            label TEXT,
            process INTEGER,
            state TEXT NOT NULL CHECK (state IN ('working', 'done', 'failed', 'cancelled')),
            started_ms INTEGER NOT NULL CHECK (started_ms >= 0),
            ended_ms INTEGER CHECK (ended_ms >= 0),
            bytes INTEGER NOT NULL CHECK (bytes >= 0),
            CHECK ((label IS NULL) = (process IS NULL)),
            CHECK ((state = 'working') = (ended_ms IS NULL))
        ) STRICT;
        CREATE TABLE chunks (
            entry INTEGER NOT NULL,
            n INTEGER NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (entry, n)
        ) STRICT",
        // The store's own clock, with the time of day of its last reading.
        "ALTER TABLE entries ADD COLUMN share TEXT NOT NULL DEFAULT '';
        ALTER TABLE entries ADD COLUMN aged_ms INTEGER NOT NULL DEFAULT 0;
        CREATE TABLE clock (aged_ms INTEGER NOT NULL, seen_ms INTEGER NOT NULL) STRICT;
        INSERT INTO clock VALUES (0, 0)",
        ROWS,
        COUNTERS,
        include_str!("formats/kept_5.sql"),
    ],
    set_up: |connection| {
        // Freed pages are not overwritten: that would write each large value twice, and values are removed by
        // age or size, not on a user's request. `forget` removes them from the file.
        connection.pragma_update(None, "secure_delete", false)?;
        connection.pragma_update(None, "journal_size_limit", LONGEST_LOG)
    },
    reads: &[READ_ROWS, READ_COUNTERS, READ_CHUNKS, READ_CLOCK],
    // They may be large, and their content was meant to be kept only for a short time.
    most_damaged: 1,
};

/// Outcomes of searches, and figures of tools.
pub(super) static LEARNED: DbFormat = DbFormat {
    name: "store.db",
    what: "search outcomes and figures of tools",
    layout: "",
    steps: &[
        "CREATE TABLE outcomes (
            document TEXT NOT NULL,
            words TEXT NOT NULL,
            weight REAL NOT NULL CHECK (weight > 0),
            at INTEGER NOT NULL CHECK (at >= 0),
            PRIMARY KEY (document, words)
        ) STRICT, WITHOUT ROWID",
        "CREATE TABLE figures (
            tool TEXT NOT NULL PRIMARY KEY,
            calls INTEGER NOT NULL CHECK (calls >= 0),
            failures INTEGER NOT NULL CHECK (failures >= 0),
            recent BLOB NOT NULL,
            called INTEGER NOT NULL CHECK (called >= 0),
            errors TEXT NOT NULL
        ) STRICT",
        ROWS,
        COUNTERS,
        include_str!("formats/store_5.sql"),
    ],
    // A user's searches are overwritten when they are deleted.
    set_up: |connection| overwrites_deleted(connection, "normal"),
    reads: &[READ_ROWS, READ_COUNTERS],
    most_damaged: 9,
};

/// Trusted definitions of servers, and waiting ones. A separate file, because `nonet forget` empties the
/// others, and to forget a pin is to trust whatever the server lists next.
pub(super) static PINS: DbFormat = DbFormat {
    name: "pins.db",
    what: "the trust in servers' definitions",
    layout: "",
    steps: &[
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
        ROWS,
        COUNTERS,
        include_str!("formats/pins_4.sql"),
    ],
    // A server that keeps changing its list causes a write per change; none of them waits for the disk.
    set_up: |connection| connection.pragma_update(None, "synchronous", "normal"),
    reads: &[READ_ROWS, READ_COUNTERS],
    most_damaged: 9,
};

fn overwrites_deleted(connection: &Connection, synchronous: &str) -> rusqlite::Result<()> {
    connection.pragma_update(None, "secure_delete", true)?;
    connection.pragma_update(None, "synchronous", synchronous)
}
