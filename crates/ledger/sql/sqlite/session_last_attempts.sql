-- The first of a session's unfinished jobs, and the last of its finished ones that had an attempt, with their attempts that
-- are over, and the database's time. A job whose newest attempt was acknowledged is left out.
-- ?1 session
SELECT id, attempt, past_attempts, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS now
FROM (
    SELECT * FROM (SELECT id, attempt, past_attempts, running_at FROM job
                   WHERE session = ?1 AND seq > 0 ORDER BY seq LIMIT 1) AS live_one
    UNION ALL
    SELECT * FROM (SELECT id, attempt, past_attempts, running_at FROM job_finished
                   WHERE session = ?1 AND attempt > 0 ORDER BY seq DESC LIMIT 1) AS done_one
) AS newest
WHERE running_at IS NULL
