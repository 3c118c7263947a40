-- From DISPATCHED to RUNNING; answers those that were as said. None in a ledger that went back in time.
-- $1 ids, $2 attempts, $3 nodes
UPDATE job j
SET state      = 'RUNNING',
    running_at = now()
FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::bigint[]) AS attempt, unnest($3::text[]) AS node) AS w
WHERE j.id = w.id AND j.attempt = w.attempt AND j.node = w.node AND j.state = 'DISPATCHED'
  AND (SELECT is_current FROM ledger_current)
RETURNING j.id
