-- The newest attempts of the jobs of stages, finished or not.
-- ?1 JSON array of ids
SELECT id, attempt FROM job WHERE id IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT id, attempt FROM job_finished WHERE id IN (SELECT value FROM json_each(?1))
