-- Pins become rows, and so do the texts of definitions, by their hash. An owner is a configuration and a server.
INSERT INTO records (kind, owner, id, body, due_ms, revision, put_ms, holder)
    SELECT 'pin', length(CAST(config AS BLOB)) || ':' || config || ':' || server, kind || ':' || name,
        json_object('trusted', trusted, 'by_user', json(iif(by_user, 'true', 'false')), 'waiting', waiting,
            'since_ms', since_ms, 'told', json(iif(told, 'true', 'false'))),
        iif(waiting IS NULL, NULL, since_ms), 1, since_ms, 0
    FROM pins ORDER BY number;
INSERT OR IGNORE INTO records (kind, owner, id, body, revision, put_ms, holder)
    SELECT 'pin_text', length(CAST(config AS BLOB)) || ':' || config || ':' || server, kind || ':' || name || ':' || trusted,
        trusted_text, 1, since_ms, 0
    FROM pins WHERE trusted IS NOT NULL AND trusted_text IS NOT NULL;
INSERT OR IGNORE INTO records (kind, owner, id, body, revision, put_ms, holder)
    SELECT 'pin_text', length(CAST(config AS BLOB)) || ':' || config || ':' || server, kind || ':' || name || ':' || waiting,
        waiting_text, 1, since_ms, 0
    FROM pins WHERE waiting IS NOT NULL AND waiting_text IS NOT NULL;
-- Gateways see by this that pins have changed.
INSERT INTO counters VALUES ('count:pins', random() & 0x3fffffffffffffff);
DROP TABLE pins;
