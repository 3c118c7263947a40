-- Those of these jobs that are not finished.
-- $1 ids
SELECT * FROM job WHERE id = ANY ($1::uuid[]) ORDER BY id
