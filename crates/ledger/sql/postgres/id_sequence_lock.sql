-- Reads a sequence and locks its row, for as long as the transaction lasts.
-- $1 sequence
SELECT sequence, start, next, increment, created_at, updated_at
FROM id_sequence
WHERE sequence = $1
FOR UPDATE
