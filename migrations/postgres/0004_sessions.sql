-- One client's conversation, whose jobs have places. Its row is there for as long as any job names it.
CREATE TABLE session (
    session      text COLLATE "C" NOT NULL PRIMARY KEY,
    pool         text COLLATE "C" NOT NULL,  -- '' for any; this and the next three are what its jobs need
    route_source text,
    route_target text,
    requires     text NOT NULL,              -- labels with a space between them
    ordering     text NOT NULL CHECK (ordering IN ('strict', 'results', 'none')),
    idle_ms      bigint NOT NULL CHECK (idle_ms > 0),
    purged_seq   bigint NOT NULL CHECK (purged_seq >= 0), -- the highest place of a job that is forgotten
    created_at   timestamptz NOT NULL,
    closed_at    timestamptz                 -- NULL while it takes jobs
);
-- Each row is in one of them.
CREATE INDEX session_open ON session (session) WHERE closed_at IS NULL;
CREATE INDEX session_closed ON session (closed_at) WHERE closed_at IS NOT NULL;

-- What the client calls a job of its session.
ALTER TABLE job ADD COLUMN client_ref text;
ALTER TABLE job_finished ADD COLUMN client_ref text;

-- A session's jobs by their places. Jobs without one are in none of these.
CREATE INDEX job_session ON job (session, seq) WHERE session IS NOT NULL;
DROP INDEX job_finished_seq;
CREATE INDEX job_finished_place ON job_finished (session, seq, id) WHERE session IS NOT NULL;
-- When something last ended in a session.
CREATE INDEX job_finished_end ON job_finished (session, finished_at) WHERE session IS NOT NULL;
