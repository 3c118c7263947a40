-- Makes a tag, unless it is there or there are too many. (On PostgreSQL several at once may make a few more.)
-- $1 tag, $2 start, $3 step, $4 description, $5 most tags
INSERT INTO id_segment (tag, start, next, step, description, created_at, updated_at)
SELECT $1, $2, $2, $3, $4, {now}, {now}
WHERE (SELECT count(*) FROM id_segment) < $5
ON CONFLICT DO NOTHING
RETURNING tag, start, next, step, description, created_at, updated_at
