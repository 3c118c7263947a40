-- Reads a tag and locks its row, for as long as the transaction lasts.
-- $1 tag
SELECT tag, start, next, step, description, created_at, updated_at
FROM id_segment
WHERE tag = $1
FOR UPDATE
