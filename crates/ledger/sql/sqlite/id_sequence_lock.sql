-- Reads a sequence. The transaction began as a writer, so its row stays.
-- ?1 sequence
SELECT sequence, start, next, increment, created_at, updated_at
FROM id_sequence
WHERE sequence = ?1
