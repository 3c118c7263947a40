-- An attempt is over, and the job back to CREATED; answers those that were as said. The oldest of too many past
-- attempts goes: each has a line, and there is one for every number.
-- ?1 JSON array of {id, lane, attempt, node, also_running, counts, ended, reason, due_at}, ?2 the transaction's time,
-- ?3 most past attempts kept, ?4 when a held job is due
UPDATE job AS j
SET state         = 'CREATED',
    node          = NULL,
    holder        = NULL,
    dispatched_at = NULL,
    running_at    = NULL,
    due_at        = iif(j.held, ?4, w.value ->> 'due_at'),
    counted       = j.counted + (w.value ->> 'counts'),
    past_attempts = CASE WHEN j.attempt > ?3 THEN substr(j.past_attempts, instr(j.past_attempts, char(10)) + 1)
                         ELSE j.past_attempts END
                    || json_object('attempt', j.attempt, 'node', j.node, 'ended', w.value ->> 'ended',
                                   'reason', w.value ->> 'reason', 'at', ?2) || char(10)
FROM json_each(?1) AS w
WHERE j.id = w.value ->> 'id' AND j.attempt = w.value ->> 'attempt'
  AND (j.state = 'DISPATCHED' OR (w.value ->> 'also_running') AND j.state = 'RUNNING')
  AND (w.value ->> 'lane' IS NULL OR j.lane = w.value ->> 'lane')
  AND (w.value ->> 'node' IS NULL OR j.node = w.value ->> 'node')
RETURNING id
