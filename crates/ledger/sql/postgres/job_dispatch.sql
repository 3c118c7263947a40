-- From CREATED to DISPATCHED; answers those that were as said.
-- $1 ids, $2 lanes, $3 attempts, $4 nodes, $5 holders
UPDATE job j
SET state         = 'DISPATCHED',
    attempt       = w.attempt,
    node          = w.node,
    holder        = w.holder,
    dispatched_at = now(),
    due_at        = NULL
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[]) AS w (id, lane, attempt, node, holder)
WHERE j.id = w.id AND j.lane = w.lane AND j.state = 'CREATED' AND j.attempt = w.attempt - 1
  AND NOT j.held
RETURNING j.id
