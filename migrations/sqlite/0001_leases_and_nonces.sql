-- The same tables as on PostgreSQL. Times are whole microseconds since 1970 (SQLite's clock has
-- milliseconds); holds are UUIDs as text.

CREATE TABLE lease (
    resource      TEXT NOT NULL PRIMARY KEY,
    owner         TEXT,                      -- NULL once released
    fencing_token INTEGER NOT NULL CHECK (fencing_token > 0),
    acquired_at   INTEGER NOT NULL,
    renewed_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE instance (
    instance_id TEXT NOT NULL PRIMARY KEY,
    url         TEXT NOT NULL,
    hostname    TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    version     TEXT NOT NULL,
    bus_up      INTEGER,                     -- NULL where it has none that could be down
    started_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE signer (
    signer        TEXT NOT NULL PRIMARY KEY,
    first_nonce   INTEGER NOT NULL CHECK (first_nonce >= 0),
    hold_ms       INTEGER,                   -- NULL follows the daemon's default
    on_expiry     TEXT NOT NULL CHECK (on_expiry IN ('release', 'quarantine')),
    max_in_flight INTEGER,                   -- NULL is no window
    fencing_token INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE signer_nonce_allocation (
    signer        TEXT NOT NULL,
    nonce         INTEGER NOT NULL CHECK (nonce >= 0),
    status        TEXT NOT NULL CHECK (status IN ('HELD', 'CONSUMED', 'RELEASED', 'QUARANTINED')),
    hold          TEXT NOT NULL,             -- the last grant's
    held_until    INTEGER NOT NULL,
    tx_hash       TEXT,
    fencing_token INTEGER NOT NULL,          -- of the last write; for the audit, never a fence
    owner         TEXT NOT NULL,             -- of the last write
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (signer, nonce)
) STRICT, WITHOUT ROWID;
-- What an owner loads: the few nonces that are not done with, whatever the number of those that are. Each
-- row is in one of the first two at most.
CREATE INDEX signer_nonce_hole ON signer_nonce_allocation (signer, status, nonce)
    WHERE status IN ('RELEASED', 'QUARANTINED');
CREATE INDEX signer_nonce_held ON signer_nonce_allocation (signer, held_until) WHERE status = 'HELD';
-- What the sweep looks for.
CREATE INDEX signer_nonce_overdue ON signer_nonce_allocation (held_until) WHERE status = 'HELD';

CREATE TABLE idempotency_key (
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    body_hash  BLOB NOT NULL,
    answer     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_key_age ON idempotency_key (created_at);

-- What is decided for the whole cluster while it runs. A change names the version that it replaces.
CREATE TABLE setting (
    name       TEXT NOT NULL PRIMARY KEY,
    version    INTEGER NOT NULL CHECK (version > 0),
    value      TEXT NOT NULL,                -- JSON
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
