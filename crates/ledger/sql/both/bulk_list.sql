-- Bulk operations, newest first; those of one principal, or all.
-- $1 before this id, $2 limit, $3 principal or NULL
SELECT {bulk}
FROM bulk
WHERE id < $1 AND ($3 IS NULL OR principal = $3)
ORDER BY id DESC
LIMIT $2
