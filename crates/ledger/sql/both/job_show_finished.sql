-- $1 id
SELECT * FROM job_finished WHERE id = $1
