-- What operators changed, in the same commit as the change. Kept for 90 days.
CREATE TABLE audit (
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    principal  TEXT NOT NULL,                -- the name of the token; '' without tokens
    action     TEXT NOT NULL,
    subject    TEXT NOT NULL,                -- kind:name
    before     TEXT,
    after      TEXT,
    reason     TEXT,
    request_id TEXT
) STRICT;
CREATE INDEX audit_subject ON audit (subject, id);
CREATE INDEX audit_principal ON audit (principal, id);
CREATE INDEX audit_age ON audit (at);
