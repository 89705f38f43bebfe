-- Entries become rows. The chunks stay where they are: a value's name is the number of its entry. What is left over when a
-- gateway is killed goes at `until_ms` of the store's clock; until then every chunk was part of an entry.
INSERT INTO records (number, kind, owner, id, body, revision, put_ms, holder)
    SELECT number, 'kept', coalesce(profile, ''), id,
        json_object('label', label, 'state', state, 'started_ms', started_ms, 'ended_ms', ended_ms, 'bytes', bytes,
            'blob', CASE WHEN bytes > 0 THEN CAST(number AS TEXT) END, 'share', share, 'aged_ms', aged_ms),
        1, coalesce(ended_ms, started_ms), coalesce(process, 0)
    FROM entries ORDER BY number;
DROP TABLE entries;
ALTER TABLE chunks ADD COLUMN until_ms INTEGER NOT NULL DEFAULT 9223372036854775807;
CREATE INDEX chunk_ends ON chunks (until_ms);
