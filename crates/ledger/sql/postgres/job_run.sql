-- From DISPATCHED to RUNNING; answers those that were as said.
-- $1 ids, $2 attempts, $3 nodes
UPDATE job j
SET state      = 'RUNNING',
    running_at = now()
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS w (id, attempt, node)
WHERE j.id = w.id AND j.attempt = w.attempt AND j.node = w.node AND j.state = 'DISPATCHED'
RETURNING j.id
