-- Places and ids of a session's finished jobs. The index has both.
-- $1 session, $2 behind this place, $3 limit
SELECT seq, id
FROM job_finished
WHERE session = $1 AND seq > $2
ORDER BY seq, id
LIMIT $3
