-- Unfinished jobs: few and busy. The commit that ends a job moves its row to job_finished.
CREATE TABLE job (
    id                     uuid NOT NULL PRIMARY KEY,       -- version 7: in the order of their making
    lane                   text COLLATE "C" NOT NULL,       -- the resource whose owner dispatches it
    seq                    bigint NOT NULL CHECK (seq >= 0), -- its place in its session from 1; 0 without one
    session                text COLLATE "C",
    tenant                 text COLLATE "C" NOT NULL,       -- '' for none
    pool                   text COLLATE "C" NOT NULL,       -- '' for any
    route_source           text,
    route_target           text,
    requires               text NOT NULL,                   -- labels with a space between them
    priority               bigint NOT NULL,
    timeout_ms             bigint NOT NULL,
    max_attempts           bigint NOT NULL,
    backoff_initial_ms     bigint NOT NULL,
    backoff_factor_percent bigint NOT NULL,
    backoff_max_ms         bigint NOT NULL,
    on_recovery            text NOT NULL CHECK (on_recovery IN ('run', 'hold')),
    payload                text NOT NULL,                   -- JSON, never looked into
    retry_of               uuid,
    created_at             timestamptz NOT NULL,
    due_at                 timestamptz,                     -- NULL is at once
    state                  text NOT NULL CHECK (state IN ('CREATED', 'DISPATCHED', 'RUNNING')),
    attempt                bigint NOT NULL CHECK (attempt >= 0),
    counted                bigint NOT NULL CHECK (counted >= 0),
    node                   text COLLATE "C",                -- who has the newest attempt; NULL in CREATED
    holder                 text,
    dispatched_at          timestamptz,
    running_at             timestamptz,
    past_attempts          text NOT NULL,                   -- a JSON object on each line
    CONSTRAINT job_placed CHECK ((state = 'CREATED') = (node IS NULL) AND (node IS NULL) = (holder IS NULL))
) WITH (
    fillfactor = 80,                                        -- room for an acknowledgement to stay on its page
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_threshold = 1000, toast.autovacuum_vacuum_scale_factor = 0.05,
    toast.autovacuum_vacuum_cost_delay = 0
);
-- Each row is in one of the first three. No column that an acknowledgement changes is in any of them.
CREATE INDEX job_waiting ON job (lane, pool, tenant, priority DESC, seq, id)
    WHERE node IS NULL AND due_at IS NULL;
CREATE INDEX job_delayed ON job (lane, due_at, id) WHERE node IS NULL AND due_at IS NOT NULL;
CREATE INDEX job_in_flight ON job (lane, id) WHERE node IS NOT NULL;
CREATE INDEX job_node ON job (node) WHERE node IS NOT NULL;

-- Jobs that have their one result, in partitions by the day of their making. A partition is dropped as a whole
-- when all of it is old enough. What no day's partition takes lies in the last one, so that no insert fails.
CREATE TABLE job_finished (
    id                     uuid NOT NULL PRIMARY KEY,
    lane                   text COLLATE "C" NOT NULL,
    seq                    bigint NOT NULL,
    session                text COLLATE "C",
    tenant                 text COLLATE "C" NOT NULL,
    pool                   text COLLATE "C" NOT NULL,
    route_source           text,
    route_target           text,
    requires               text NOT NULL,
    priority               bigint NOT NULL,
    timeout_ms             bigint NOT NULL,
    max_attempts           bigint NOT NULL,
    backoff_initial_ms     bigint NOT NULL,
    backoff_factor_percent bigint NOT NULL,
    backoff_max_ms         bigint NOT NULL,
    on_recovery            text NOT NULL,
    payload                text NOT NULL,
    retry_of               uuid,
    created_at             timestamptz NOT NULL,
    due_at                 timestamptz,                     -- where it ended before it was due
    attempt                bigint NOT NULL,
    counted                bigint NOT NULL,
    node                   text COLLATE "C",                -- who had the last attempt, if it ended with the job
    holder                 text,
    dispatched_at          timestamptz,
    running_at             timestamptz,
    past_attempts          text NOT NULL,                   -- all but one that succeeded
    outcome                text COLLATE "C" NOT NULL
                           CHECK (outcome IN ('succeeded', 'failed', 'cancelled', 'timed_out')),
    dead                   boolean NOT NULL,
    result                 text,                            -- JSON, never looked into
    error                  text,
    finished_at            timestamptz NOT NULL,
    released_at            timestamptz                      -- NULL while its slot may be taken
) PARTITION BY RANGE (id);
CREATE TABLE job_finished_rest PARTITION OF job_finished DEFAULT;
-- For the lists, newest first.
CREATE INDEX job_finished_session ON job_finished (session, id) WHERE session IS NOT NULL;
CREATE INDEX job_finished_tenant ON job_finished (tenant, id) WHERE tenant <> '';
CREATE INDEX job_finished_pool ON job_finished (pool, id) WHERE pool <> '';
CREATE INDEX job_finished_outcome ON job_finished (outcome, id) WHERE outcome <> 'succeeded';
CREATE INDEX job_finished_dead ON job_finished (id) WHERE dead;
-- For the next number of a session.
CREATE INDEX job_finished_seq ON job_finished (session, seq) WHERE session IS NOT NULL;
-- For the purge: rows are appended as they finish, so that a few words for each range of pages say it all.
CREATE INDEX job_finished_age ON job_finished USING brin (finished_at) WITH (autosummarize = on);
