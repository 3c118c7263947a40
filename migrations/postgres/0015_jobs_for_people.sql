-- What a job does, such as send_email. NULL for none.
ALTER TABLE job ADD COLUMN kind text COLLATE "C";
ALTER TABLE job_finished ADD COLUMN kind text COLLATE "C";
CREATE INDEX job_finished_kind ON job_finished (kind, id) WHERE kind IS NOT NULL;

-- When somebody said that a failed job need not be retried; NULL while nobody has. A dead job failed or timed out, no job
-- retries it, and nobody has dismissed it; the index job_finished_dead finds those and the dismissed.
ALTER TABLE job_finished ADD COLUMN dismissed_at timestamptz;

-- Pools to which nothing is dispatched.
CREATE TABLE pool_pause (
    pool      text COLLATE "C" NOT NULL PRIMARY KEY,
    reason    text NOT NULL,
    principal text COLLATE "C" NOT NULL,    -- the name of the token; '' without tokens
    since     timestamptz NOT NULL,
    until     timestamptz             -- NULL until somebody resumes it
);

-- Bulk operations: one action on all jobs that match a filter, done in the background by one owner at a time.
CREATE TABLE bulk (
    id          uuid NOT NULL PRIMARY KEY,
    principal   text COLLATE "C" NOT NULL,     -- the name of the token; '' without tokens
    action      text NOT NULL CHECK (action IN ('retry', 'cancel', 'delete', 'dismiss')),
    filter      text NOT NULL,                 -- JSON
    before      timestamptz NOT NULL,          -- jobs that finished, or for cancel were submitted, before this
    rate        bigint NOT NULL,               -- jobs per second at most
    status      text NOT NULL CHECK (status IN ('RUNNING', 'CANCELLING', 'DONE', 'CANCELLED', 'FAILED')),
    matched     bigint NOT NULL,
    done        bigint NOT NULL,
    skipped     bigint NOT NULL,
    failed      bigint NOT NULL,
    error       text,
    created_at  timestamptz NOT NULL,
    finished_at timestamptz,
    owner       text COLLATE "C" NOT NULL,     -- the instance that works on it, or did last
    token       bigint NOT NULL,               -- rises with each owner: what an earlier one writes finds no row
    behind      uuid,                          -- all jobs up to this one were worked on
    page        text,                          -- JSON: the jobs that the owner is working on
    key_hash    text COLLATE "C" UNIQUE,       -- of its idempotency key and of who gave it
    body_hash   text NOT NULL
);
CREATE INDEX bulk_open ON bulk (id) WHERE finished_at IS NULL;

-- Instances of the last release run on. Their connections have prepared statements that read all columns of a job, which
-- PostgreSQL refuses for good from now on (0A000, `cached plan must not change result type`). New connections prepare them
-- anew. Until this transaction ends, its locks on the tables keep such statements waiting, so none of them is refused.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%' AND pid <> pg_backend_pid()
  AND pg_has_role(usesysid, 'USAGE') AND EXISTS (SELECT FROM lease);
