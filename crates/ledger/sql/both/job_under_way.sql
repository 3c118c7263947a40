-- What a lane has under way: each job that is DISPATCHED or RUNNING with its attempt, and nothing of what it is about.
-- $1 lane, $2 after this id, $3 limit
SELECT id, attempt, state
FROM job
WHERE lane = $1 AND node IS NOT NULL AND id > $2
ORDER BY id
LIMIT $3
