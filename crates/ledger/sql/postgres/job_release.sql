-- The slots of finished jobs are free again; answers those of which that was not noted yet.
-- $1 ids
UPDATE job_finished
SET released_at = now()
WHERE id = ANY ($1::uuid[]) AND released_at IS NULL
RETURNING id
