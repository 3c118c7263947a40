-- What a job does, such as send_email. NULL for none.
ALTER TABLE job ADD COLUMN kind TEXT;
ALTER TABLE job_finished ADD COLUMN kind TEXT;
CREATE INDEX job_finished_kind ON job_finished (kind, id) WHERE kind IS NOT NULL;

-- When somebody said that a failed job need not be retried; NULL while nobody has. A dead job failed or timed out, no job
-- retries it, and nobody has dismissed it.
ALTER TABLE job_finished ADD COLUMN dismissed_at INTEGER;
DROP INDEX job_finished_dead;
CREATE INDEX job_finished_dead ON job_finished (id)
    WHERE outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL;

-- Pools to which nothing is dispatched.
CREATE TABLE pool_pause (
    pool      TEXT NOT NULL PRIMARY KEY,
    reason    TEXT NOT NULL,
    principal TEXT NOT NULL,    -- the name of the token; '' without tokens
    since     INTEGER NOT NULL,
    until     INTEGER             -- NULL until somebody resumes it
) STRICT;
