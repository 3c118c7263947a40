-- Those of these jobs that are not finished, each with its state, and nothing of what it is about.
-- ?1 JSON array of ids
SELECT id, state FROM job WHERE id IN (SELECT value FROM json_each(?1))
