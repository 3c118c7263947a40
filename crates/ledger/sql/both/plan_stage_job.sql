-- How the job of a stage ended, and whether the slot of its last attempt is free.
-- $1 job
SELECT outcome, result, error, released_at
FROM job_finished
WHERE id = $1
