-- Dead jobs are dismissed: nobody means to retry them. Answers those that were dead. Their rows are locked in one order.
-- $1 ids, $2 the lowest and $3 the highest of them, by which partitions are left out
WITH locked AS MATERIALIZED (
    SELECT id
    FROM job_finished
    WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2 AND $3
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE job_finished AS f
SET dismissed_at = now()
FROM locked
WHERE f.id = locked.id AND f.id BETWEEN $2 AND $3
  AND f.outcome IN ('failed', 'timed_out') AND f.retried_as IS NULL AND f.dismissed_at IS NULL
RETURNING f.id
