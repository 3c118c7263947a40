-- Plans, newest first.
-- $1 before this id, $2 status or NULL, $3 limit
SELECT id, status, version, document, created_at, finished_at
FROM plan
WHERE id < $1 AND (CAST($2 AS text) IS NULL OR status = $2)
ORDER BY id DESC
LIMIT $3
