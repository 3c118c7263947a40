-- Who owns what. One row per resource for as long as its token must not start over.
CREATE TABLE lease (
    resource      text COLLATE "C" NOT NULL PRIMARY KEY,
    owner         text,                      -- NULL once released
    fencing_token bigint NOT NULL CHECK (fencing_token > 0),
    acquired_at   timestamptz NOT NULL,
    renewed_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    -- Part of the fence, though no two rows could ever clash: it makes fencing_token a key column, so
    -- that FOR KEY SHARE waits for a takeover (which changes it) and not for a renewal (which does not).
    CONSTRAINT lease_fence UNIQUE (resource, fencing_token)
) WITH (fillfactor = 50);                    -- room for renewals to stay on their page

-- Who runs, and where. One row per incarnation.
CREATE TABLE instance (
    instance_id text COLLATE "C" NOT NULL PRIMARY KEY,
    url         text NOT NULL,
    hostname    text NOT NULL,
    pid         bigint NOT NULL,
    version     text NOT NULL,
    bus_up      boolean,                     -- NULL where it has none that could be down
    started_at  timestamptz NOT NULL
);

-- A signer exists from its first grant or policy on.
CREATE TABLE signer (
    signer        text COLLATE "C" NOT NULL PRIMARY KEY,
    first_nonce   bigint NOT NULL CHECK (first_nonce >= 0),
    hold_ms       bigint,                    -- NULL follows the daemon's default
    on_expiry     text NOT NULL CHECK (on_expiry IN ('release', 'quarantine')),
    max_in_flight bigint,                    -- NULL is no window
    fencing_token bigint NOT NULL,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL
);

-- One row per nonce ever granted, kept for good.
CREATE TABLE signer_nonce_allocation (
    signer        text COLLATE "C" NOT NULL,
    nonce         bigint NOT NULL CHECK (nonce >= 0),
    status        text NOT NULL CHECK (status IN ('HELD', 'CONSUMED', 'RELEASED', 'QUARANTINED')),
    hold          uuid NOT NULL,             -- the last grant's
    held_until    timestamptz NOT NULL,
    tx_hash       text,
    fencing_token bigint NOT NULL,           -- of the last write; for the audit, never a fence
    owner         text NOT NULL,             -- of the last write
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    PRIMARY KEY (signer, nonce)
);
-- What an owner loads: the few nonces that are not done with, whatever the number of those that are. Each
-- row is in one of the first two at most.
CREATE INDEX signer_nonce_hole ON signer_nonce_allocation (signer, status, nonce)
    WHERE status IN ('RELEASED', 'QUARANTINED');
CREATE INDEX signer_nonce_held ON signer_nonce_allocation (signer, held_until) WHERE status = 'HELD';
-- What the sweep looks for.
CREATE INDEX signer_nonce_overdue ON signer_nonce_allocation (held_until) WHERE status = 'HELD';

-- Answers to give again.
CREATE TABLE idempotency_key (
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    body_hash  bytea NOT NULL,
    answer     text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_key_age ON idempotency_key (created_at);

-- What is decided for the whole cluster while it runs. A change names the version that it replaces.
CREATE TABLE setting (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    version    bigint NOT NULL CHECK (version > 0),
    value      text NOT NULL,                -- JSON
    updated_at timestamptz NOT NULL
);
