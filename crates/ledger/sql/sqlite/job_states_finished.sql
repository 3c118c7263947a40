-- Those of these jobs that are finished.
-- ?1 JSON array of ids
SELECT id FROM job_finished WHERE id IN (SELECT value FROM json_each(?1))
