-- The newest attempts of the jobs of stages, finished or not.
-- $1 ids, $2 the lowest and $3 the highest of them, by which partitions are left out
SELECT id, attempt FROM job WHERE id = ANY ($1::uuid[])
UNION ALL
SELECT id, attempt FROM job_finished WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2 AND $3
