-- $1 after this tag, $2 limit
SELECT tag, start, next, step, description, created_at, updated_at
FROM id_segment
WHERE tag > $1
ORDER BY tag
LIMIT $2
