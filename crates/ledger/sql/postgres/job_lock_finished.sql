-- Locks the rows of finished jobs, in one order, for as long as the transaction lasts; answers those that no other job
-- has retried.
-- $1 ids, $2 the lowest and $3 the highest of them, by which partitions are left out
WITH locked AS MATERIALIZED (
    SELECT id, retried_as
    FROM job_finished
    WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2 AND $3
    ORDER BY id
    FOR NO KEY UPDATE
)
SELECT id FROM locked WHERE retried_as IS NULL
