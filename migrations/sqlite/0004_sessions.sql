-- The same tables as on PostgreSQL. Times are whole microseconds since 1970.

-- One client's conversation, whose jobs have places. Its row is there for as long as any job names it.
CREATE TABLE session (
    session      TEXT NOT NULL PRIMARY KEY,
    pool         TEXT NOT NULL,              -- '' for any; this and the next three are what its jobs need
    route_source TEXT,
    route_target TEXT,
    requires     TEXT NOT NULL,              -- labels with a space between them
    ordering     TEXT NOT NULL CHECK (ordering IN ('strict', 'results', 'none')),
    idle_ms      INTEGER NOT NULL CHECK (idle_ms > 0),
    purged_seq   INTEGER NOT NULL CHECK (purged_seq >= 0), -- the highest place of a job that is forgotten
    created_at   INTEGER NOT NULL,
    closed_at    INTEGER                     -- NULL while it takes jobs
) STRICT, WITHOUT ROWID;
-- Each row is in one of them.
CREATE INDEX session_open ON session (session) WHERE closed_at IS NULL;
CREATE INDEX session_closed ON session (closed_at) WHERE closed_at IS NOT NULL;

-- What the client calls a job of its session.
ALTER TABLE job ADD COLUMN client_ref TEXT;
ALTER TABLE job_finished ADD COLUMN client_ref TEXT;

-- A session's jobs by their places. Jobs without one are in none of these.
CREATE INDEX job_session ON job (session, seq) WHERE session IS NOT NULL;
DROP INDEX job_finished_seq;
CREATE INDEX job_finished_place ON job_finished (session, seq, id) WHERE session IS NOT NULL;
-- When something last ended in a session.
CREATE INDEX job_finished_end ON job_finished (session, finished_at) WHERE session IS NOT NULL;
