-- Those of these jobs that are finished.
-- $1 ids, $2 the lowest and $3 the highest of them, by which partitions are left out
SELECT id FROM job_finished WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2 AND $3
