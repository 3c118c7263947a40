-- How many finished jobs of a session are kept.
-- $1 session
SELECT count(*) FROM job_finished WHERE session = $1
