-- The rows of a file. `holder` is the number of a gateway, or 0. `config` is the only configuration for whose gateways a row
-- is, if any. Times are in milliseconds since 1970.
CREATE TABLE records (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    due_ms INTEGER CHECK (due_ms >= 0),
    revision INTEGER NOT NULL,
    put_ms INTEGER NOT NULL CHECK (put_ms >= 0),
    holder INTEGER NOT NULL CHECK (holder >= 0),
    config TEXT,
    UNIQUE (kind, owner, id)
) STRICT;
CREATE INDEX due ON records (due_ms) WHERE due_ms IS NOT NULL;
