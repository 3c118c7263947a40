-- From CREATED to DISPATCHED; answers those that were as said.
-- $1 ids, $2 lanes, $3 attempts, $4 nodes, $5 holders
UPDATE job j
SET state         = 'DISPATCHED',
    attempt       = w.attempt,
    node          = w.node,
    holder        = w.holder,
    dispatched_at = now(),
    due_at        = NULL
FROM (
    SELECT unnest($1::uuid[]) AS id, unnest($2::text[]) AS lane, unnest($3::bigint[]) AS attempt,
           unnest($4::text[]) AS node, unnest($5::text[]) AS holder
) AS w
WHERE j.id = w.id AND j.lane = w.lane AND j.state = 'CREATED' AND j.attempt = w.attempt - 1
  AND NOT j.held
RETURNING j.id
