-- Dead jobs are dismissed: nobody means to retry them. Answers those that were dead.
-- ?1 JSON array of ids, ?2 the transaction's time
UPDATE job_finished
SET dismissed_at = ?2
WHERE id IN (SELECT value FROM json_each(?1))
  AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL
RETURNING id
