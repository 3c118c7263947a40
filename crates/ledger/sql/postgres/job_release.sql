-- The slots of finished jobs are free again; answers those of which that was not noted yet.
-- $1 ids, $2 the lowest and $3 the highest of them, by which partitions are left out
UPDATE job_finished
SET released_at = now()
WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2 AND $3 AND released_at IS NULL
RETURNING id
