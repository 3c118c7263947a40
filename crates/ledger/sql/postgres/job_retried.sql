-- Finished jobs are retried by new ones; answers those that are there. Their rows are locked.
-- $1 ids, $2 the new jobs, $3 the lowest and $4 the highest of the ids, by which partitions are left out
UPDATE job_finished AS f
SET retried_as = w.retried_as
FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::uuid[]) AS retried_as) AS w
WHERE f.id = w.id AND f.id BETWEEN $3 AND $4
RETURNING f.id
