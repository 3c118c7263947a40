-- Those of these jobs that are not finished.
-- ?1 JSON array of ids
SELECT * FROM job WHERE id IN (SELECT value FROM json_each(?1)) ORDER BY id
