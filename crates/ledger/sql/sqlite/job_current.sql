-- Which of these jobs have an attempt under way, and which.
-- ?1 JSON array of ids
SELECT id, attempt FROM job WHERE id IN (SELECT value FROM json_each(?1)) AND node IS NOT NULL ORDER BY id
