-- Places of a session's unfinished jobs. The index has them.
-- $1 session, $2 behind this place, $3 limit
SELECT seq
FROM job
WHERE session = $1 AND seq > $2
ORDER BY seq
LIMIT $3
