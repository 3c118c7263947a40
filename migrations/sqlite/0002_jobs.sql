-- The same tables as on PostgreSQL, the finished jobs in one piece. Times are whole microseconds since 1970; ids
-- are UUIDs as text, whose order is theirs.

-- Unfinished jobs: few and busy. The commit that ends a job moves its row to job_finished.
CREATE TABLE job (
    id                     TEXT NOT NULL PRIMARY KEY,       -- version 7: in the order of their making
    lane                   TEXT NOT NULL,                   -- the resource whose owner dispatches it
    seq                    INTEGER NOT NULL CHECK (seq >= 0), -- its place in its session from 1; 0 without one
    session                TEXT,
    tenant                 TEXT NOT NULL,                   -- '' for none
    pool                   TEXT NOT NULL,                   -- '' for any
    route_source           TEXT,
    route_target           TEXT,
    requires               TEXT NOT NULL,                   -- labels with a space between them
    priority               INTEGER NOT NULL,
    timeout_ms             INTEGER NOT NULL,
    max_attempts           INTEGER NOT NULL,
    backoff_initial_ms     INTEGER NOT NULL,
    backoff_factor_percent INTEGER NOT NULL,
    backoff_max_ms         INTEGER NOT NULL,
    on_recovery            TEXT NOT NULL CHECK (on_recovery IN ('run', 'hold')),
    payload                TEXT NOT NULL,                   -- JSON, never looked into
    retry_of               TEXT,
    created_at             INTEGER NOT NULL,
    due_at                 INTEGER,                         -- NULL is at once
    state                  TEXT NOT NULL CHECK (state IN ('CREATED', 'DISPATCHED', 'RUNNING')),
    attempt                INTEGER NOT NULL CHECK (attempt >= 0),
    counted                INTEGER NOT NULL CHECK (counted >= 0),
    node                   TEXT,                            -- who has the newest attempt; NULL in CREATED
    holder                 TEXT,
    dispatched_at          INTEGER,
    running_at             INTEGER,
    past_attempts          TEXT NOT NULL,                   -- a JSON object on each line
    CONSTRAINT job_placed CHECK ((state = 'CREATED') = (node IS NULL) AND (node IS NULL) = (holder IS NULL))
) STRICT;
-- Each row is in one of the first three. No column that an acknowledgement changes is in any of them.
CREATE INDEX job_waiting ON job (lane, pool, tenant, priority DESC, seq, id)
    WHERE node IS NULL AND due_at IS NULL;
CREATE INDEX job_delayed ON job (lane, due_at, id) WHERE node IS NULL AND due_at IS NOT NULL;
CREATE INDEX job_in_flight ON job (lane, id) WHERE node IS NOT NULL;
CREATE INDEX job_node ON job (node) WHERE node IS NOT NULL;

-- Jobs that have their one result.
CREATE TABLE job_finished (
    id                     TEXT NOT NULL PRIMARY KEY,
    lane                   TEXT NOT NULL,
    seq                    INTEGER NOT NULL,
    session                TEXT,
    tenant                 TEXT NOT NULL,
    pool                   TEXT NOT NULL,
    route_source           TEXT,
    route_target           TEXT,
    requires               TEXT NOT NULL,
    priority               INTEGER NOT NULL,
    timeout_ms             INTEGER NOT NULL,
    max_attempts           INTEGER NOT NULL,
    backoff_initial_ms     INTEGER NOT NULL,
    backoff_factor_percent INTEGER NOT NULL,
    backoff_max_ms         INTEGER NOT NULL,
    on_recovery            TEXT NOT NULL,
    payload                TEXT NOT NULL,
    retry_of               TEXT,
    created_at             INTEGER NOT NULL,
    due_at                 INTEGER,                         -- where it ended before it was due
    attempt                INTEGER NOT NULL,
    counted                INTEGER NOT NULL,
    node                   TEXT,                            -- who had the last attempt, if it ended with the job
    holder                 TEXT,
    dispatched_at          INTEGER,
    running_at             INTEGER,
    past_attempts          TEXT NOT NULL,                   -- all but one that succeeded
    outcome                TEXT NOT NULL CHECK (outcome IN ('succeeded', 'failed', 'cancelled', 'timed_out')),
    dead                   INTEGER NOT NULL,
    result                 TEXT,                            -- JSON, never looked into
    error                  TEXT,
    finished_at            INTEGER NOT NULL,
    released_at            INTEGER                          -- NULL while its slot may be taken
) STRICT;
-- For the lists, newest first.
CREATE INDEX job_finished_session ON job_finished (session, id) WHERE session IS NOT NULL;
CREATE INDEX job_finished_tenant ON job_finished (tenant, id) WHERE tenant <> '';
CREATE INDEX job_finished_pool ON job_finished (pool, id) WHERE pool <> '';
CREATE INDEX job_finished_outcome ON job_finished (outcome, id) WHERE outcome <> 'succeeded';
CREATE INDEX job_finished_dead ON job_finished (id) WHERE dead;
-- For the next number of a session.
CREATE INDEX job_finished_seq ON job_finished (session, seq) WHERE session IS NOT NULL;
-- For the purge.
CREATE INDEX job_finished_age ON job_finished (finished_at);
