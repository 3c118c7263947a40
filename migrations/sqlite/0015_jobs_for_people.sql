-- What a job does, such as send_email. NULL for none.
ALTER TABLE job ADD COLUMN kind TEXT;
ALTER TABLE job_finished ADD COLUMN kind TEXT;
CREATE INDEX job_finished_kind ON job_finished (kind, id) WHERE kind IS NOT NULL;

-- When somebody said that a failed job need not be retried; NULL while nobody has. A dead job failed or timed out, no job
-- retries it, and nobody has dismissed it; the index job_finished_dead finds those and the dismissed.
ALTER TABLE job_finished ADD COLUMN dismissed_at INTEGER;

-- Pools to which nothing is dispatched.
CREATE TABLE pool_pause (
    pool      TEXT NOT NULL PRIMARY KEY,
    reason    TEXT NOT NULL,
    principal TEXT NOT NULL,    -- the name of the token; '' without tokens
    since     INTEGER NOT NULL,
    until     INTEGER             -- NULL until somebody resumes it
) STRICT;

-- Bulk operations: one action on all jobs that match a filter, done in the background by one owner at a time.
CREATE TABLE bulk (
    id          TEXT NOT NULL PRIMARY KEY,
    principal   TEXT NOT NULL,     -- the name of the token; '' without tokens
    action      TEXT NOT NULL CHECK (action IN ('retry', 'cancel', 'delete', 'dismiss')),
    filter      TEXT NOT NULL,                 -- JSON
    before      INTEGER NOT NULL,          -- jobs that finished, or for cancel were submitted, before this
    rate        INTEGER NOT NULL,               -- jobs per second at most
    status      TEXT NOT NULL CHECK (status IN ('RUNNING', 'CANCELLING', 'DONE', 'CANCELLED', 'FAILED')),
    matched     INTEGER NOT NULL,
    done        INTEGER NOT NULL,
    skipped     INTEGER NOT NULL,
    failed      INTEGER NOT NULL,
    error       TEXT,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER,
    owner       TEXT NOT NULL,     -- the instance that works on it, or did last
    token       INTEGER NOT NULL,               -- rises with each owner: what an earlier one writes finds no row
    behind      TEXT,                          -- all jobs up to this one were worked on
    page        TEXT,                          -- JSON: the jobs that the owner is working on
    key_hash    TEXT UNIQUE,       -- of its idempotency key and of who gave it
    body_hash   TEXT NOT NULL
) STRICT;
CREATE INDEX bulk_open ON bulk (id) WHERE finished_at IS NULL;
