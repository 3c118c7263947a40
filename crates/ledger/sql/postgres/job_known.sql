-- Which of these jobs are finished.
-- $1 ids
SELECT id FROM job_finished WHERE id = ANY ($1::uuid[])
