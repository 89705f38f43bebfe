-- Outcomes and figures become rows.
INSERT INTO records (kind, owner, id, body, due_ms, revision, put_ms, holder)
    SELECT 'outcome', document, words, json_object('weight', weight, 'at', at), at, 1, 0, 0 FROM outcomes;
INSERT INTO records (kind, owner, id, body, due_ms, revision, put_ms, holder)
    SELECT 'figures', '', tool,
        json_object('calls', calls, 'failures', failures, 'recent', lower(hex(recent)), 'called_ms', called, 'errors', json(errors)),
        called, 1, 0, 0
    FROM figures WHERE json_valid(errors);
DROP TABLE outcomes;
DROP TABLE figures;
