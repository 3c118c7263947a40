-- An attempt is over, and the job back to CREATED; answers those that were as said. The oldest of too many past
-- attempts goes: each has a line, and there is one for every number. None goes back in a ledger that went back in time.
-- $1 ids, $2 lanes or NULL, $3 attempts, $4 nodes or NULL, $5 whether also from RUNNING, $6 what they count,
-- $7 how they ended, $8 reasons, $9 when they are due or NULL, $10 most past attempts kept,
-- $11 when a held job is due, in microseconds since 1970
UPDATE job j
SET state         = 'CREATED',
    node          = NULL,
    holder        = NULL,
    dispatched_at = NULL,
    running_at    = NULL,
    due_at        = CASE WHEN j.held THEN 'epoch'::timestamptz + $11 * interval '1 microsecond' ELSE w.due_at END,
    counted       = j.counted + w.counts,
    past_attempts = CASE WHEN j.attempt > $10 THEN substr(j.past_attempts, strpos(j.past_attempts, E'\n') + 1)
                         ELSE j.past_attempts END
                    || json_build_object('attempt', j.attempt, 'node', j.node, 'ended', w.ended, 'reason', w.reason,
                                         'at', (extract(epoch FROM now()) * 1000000)::bigint) || E'\n'
FROM (
    SELECT unnest($1::uuid[]) AS id, unnest($2::text[]) AS lane, unnest($3::bigint[]) AS attempt,
           unnest($4::text[]) AS node, unnest($5::boolean[]) AS also_running, unnest($6::bigint[]) AS counts,
           unnest($7::text[]) AS ended, unnest($8::text[]) AS reason, unnest($9::timestamptz[]) AS due_at
) AS w
WHERE j.id = w.id AND j.attempt = w.attempt
  AND (j.state = 'DISPATCHED' OR w.also_running AND j.state = 'RUNNING')
  AND (w.lane IS NULL OR j.lane = w.lane)
  AND (w.node IS NULL OR j.node = w.node)
  AND (SELECT is_current FROM ledger_current)
RETURNING j.id
