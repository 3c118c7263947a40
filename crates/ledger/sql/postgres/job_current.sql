-- Which of these jobs have an attempt under way, and which.
-- $1 ids
SELECT id, attempt FROM job WHERE id = ANY ($1::uuid[]) AND node IS NOT NULL ORDER BY id
