-- The first of a session's unfinished jobs, and the last that had an attempt of those that finished lately, with their
-- attempts that are over, and the database's time. A job whose newest attempt was acknowledged is left out. The finished ones
-- are found by their time: behind the one that is looked for, any number may have ended before they had an attempt. (The sum
-- keeps them from being read in the order of their places.)
-- ?1 session, ?2 for how many milliseconds a job counts as finished lately
SELECT id, attempt, past_attempts, {now} AS now
FROM (
    SELECT * FROM (SELECT id, attempt, past_attempts, running_at FROM job
                   WHERE session = ?1 AND seq > 0 ORDER BY seq LIMIT 1) AS live_one
    UNION ALL
    SELECT * FROM (SELECT id, attempt, past_attempts, running_at FROM job_finished
                   WHERE session = ?1 AND attempt > 0
                     AND finished_at > {now} - ?2 * 1000
                   ORDER BY seq + 0 DESC LIMIT 1) AS done_one
) AS newest
WHERE running_at IS NULL
