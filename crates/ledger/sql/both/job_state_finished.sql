-- The same of a finished job.
-- $1 id
SELECT 'FINISHED' AS state FROM job_finished WHERE id = $1
