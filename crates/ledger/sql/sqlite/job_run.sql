-- From DISPATCHED to RUNNING; answers those that were as said.
-- ?1 JSON array of {id, attempt, node}, ?2 the transaction's time
UPDATE job AS j
SET state      = 'RUNNING',
    running_at = ?2
FROM json_each(?1) AS w
WHERE j.id = w.value ->> 'id' AND j.attempt = w.value ->> 'attempt' AND j.node = w.value ->> 'node'
  AND j.state = 'DISPATCHED'
RETURNING id
