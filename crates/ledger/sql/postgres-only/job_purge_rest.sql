-- Deletes old finished jobs that no day's partition took; answers the session and place of each.
-- $1 age in ms, $2 limit
DELETE FROM job_finished_rest
WHERE id IN (
    SELECT id FROM job_finished_rest
    WHERE finished_at < now() - $1 * interval '1 millisecond'
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
RETURNING session, seq
