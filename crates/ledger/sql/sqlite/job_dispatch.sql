-- From CREATED to DISPATCHED; answers those that were as said.
-- ?1 JSON array of {id, lane, attempt, node, holder}, ?2 the transaction's time
UPDATE job AS j
SET state         = 'DISPATCHED',
    attempt       = w.value ->> 'attempt',
    node          = w.value ->> 'node',
    holder        = w.value ->> 'holder',
    dispatched_at = ?2,
    due_at        = NULL
FROM json_each(?1) AS w
WHERE j.id = w.value ->> 'id' AND j.lane = w.value ->> 'lane'
  AND j.state = 'CREATED' AND j.attempt = (w.value ->> 'attempt') - 1 AND NOT j.held
RETURNING id
