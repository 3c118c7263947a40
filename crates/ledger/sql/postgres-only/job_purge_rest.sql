-- Deletes old finished jobs that no day's partition took, the oldest first, but for those that a plan waits for; answers the
-- session and place of each.
-- $1 age in ms, $2 limit
DELETE FROM job_finished_rest
WHERE id IN (
    SELECT id FROM job_finished_rest f
    WHERE finished_at < now() - $1 * interval '1 millisecond'
      AND {unawaited}
    ORDER BY finished_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
RETURNING session, seq
