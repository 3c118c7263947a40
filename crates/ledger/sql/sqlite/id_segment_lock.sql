-- Reads a tag. The transaction began as a writer, so its row stays.
-- ?1 tag
SELECT tag, start, next, step, description, created_at, updated_at
FROM id_segment
WHERE tag = ?1
