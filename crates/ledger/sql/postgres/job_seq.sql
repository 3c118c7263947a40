-- The highest place given in a session, 0 for none. Of jobs that are forgotten it is noted in the session.
-- $1 session
SELECT greatest(
    coalesce((SELECT seq FROM job WHERE session = $1 ORDER BY seq DESC LIMIT 1), 0),
    coalesce((SELECT seq FROM job_finished WHERE session = $1 ORDER BY seq DESC LIMIT 1), 0),
    coalesce((SELECT purged_seq FROM session WHERE session = $1), 0)
)
