-- Makes a sequence, unless it is there or there are too many. (On PostgreSQL several at once may make a few more.)
-- $1 sequence, $2 start, $3 increment, $4 most sequences
INSERT INTO id_sequence (sequence, start, next, increment, created_at, updated_at)
SELECT $1, $2, $2, $3, {now}, {now}
WHERE (SELECT count(*) FROM id_sequence) < $4
ON CONFLICT DO NOTHING
RETURNING sequence, start, next, increment, created_at, updated_at
