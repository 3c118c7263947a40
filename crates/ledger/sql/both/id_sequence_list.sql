-- $1 after this sequence, $2 limit
SELECT sequence, start, next, increment, created_at, updated_at
FROM id_sequence
WHERE sequence > $1
ORDER BY sequence
LIMIT $2
