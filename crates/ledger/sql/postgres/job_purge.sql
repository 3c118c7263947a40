-- Deletes old finished jobs of days whose partition cannot be dropped even a day later, since a job of that day finished late,
-- but for those that a plan waits for; answers the session and place of each.
-- $1 age in ms, $2 below this id, $3 limit
DELETE FROM job_finished
WHERE id IN (
    SELECT id FROM job_finished f
    WHERE id < $2 AND finished_at < now() - $1 * interval '1 millisecond'
      AND {unawaited}
    ORDER BY id
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
RETURNING session, seq
