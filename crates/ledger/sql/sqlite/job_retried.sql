-- Finished jobs are retried by new ones; answers those that are there.
-- ?1 JSON array of {id, retried_as}
UPDATE job_finished
SET retried_as = w.value ->> 'retried_as'
FROM json_each(?1) AS w
WHERE job_finished.id = w.value ->> 'id'
RETURNING id
