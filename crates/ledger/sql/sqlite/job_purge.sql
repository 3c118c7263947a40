-- Deletes old finished jobs, but for those that a plan waits for; answers the session and place of each.
-- ?1 age in ms, ?2 limit
DELETE FROM job_finished
WHERE id IN (
    SELECT id FROM job_finished f
    WHERE finished_at < {now} - ?1 * 1000
      AND {unawaited}
    ORDER BY finished_at
    LIMIT ?2
)
RETURNING session, seq
