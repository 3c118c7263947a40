-- Deletes finished jobs, but for those that a plan waits for; answers them, each with its session and its place there. Their
-- rows are locked in one order. A line with a mark is there only if a bulk operation's filter asks for it; it holds for the row
-- as it is once it is locked.
-- $1 ids, $2 the lowest and $3 the highest of them, by which partitions are left out
WITH locked AS MATERIALIZED (
    SELECT id
    FROM job_finished f
    WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2 AND $3
      AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
      AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
      AND {unawaited}
    ORDER BY id
    FOR UPDATE
)
DELETE FROM job_finished AS f
USING locked
WHERE f.id = locked.id AND f.id BETWEEN $2 AND $3
RETURNING f.id, f.session, f.seq
