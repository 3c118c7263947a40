-- The owner is about to work on these jobs. Nothing is written where it is the owner no more or the work is to end.
-- $1 id, $2 token, $3 JSON array of ids
UPDATE bulk
SET page = $3
WHERE id = $1 AND token = $2 AND status = 'RUNNING'
RETURNING {bulk}
