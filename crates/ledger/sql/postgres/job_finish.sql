-- Moves jobs to where the finished ones are; answers those that were as said, with the transaction's time. An attempt
-- under way that did not succeed becomes a past one. In a ledger that went back in time none is moved.
-- $1 ids, $2 lanes or NULL, $3 attempts or NULL, $4 nodes or NULL, $5 whether also from RUNNING, $6 what they count,
-- $7 how the attempts ended, $8 outcomes, $9 dead ones, $10 results or NULL, $11 errors or NULL,
-- $12 whether their slots are free, $13 most past attempts kept
WITH gone AS (
    DELETE FROM job j
    USING (
        SELECT unnest($1::uuid[]) AS which, unnest($2::text[]) AS of_lane, unnest($3::bigint[]) AS of_attempt,
               unnest($4::text[]) AS of_node, unnest($5::boolean[]) AS also_running, unnest($6::bigint[]) AS counts,
               unnest($7::text[]) AS ended, unnest($8::text[]) AS outcome, unnest($9::boolean[]) AS dead,
               unnest($10::text[]) AS result, unnest($11::text[]) AS error, unnest($12::boolean[]) AS is_free
    ) AS w
    WHERE j.id = w.which
      AND (w.of_lane IS NULL OR j.lane = w.of_lane)
      AND (w.of_attempt IS NULL OR j.attempt = w.of_attempt AND j.node IS NOT NULL)
      AND (w.of_node IS NULL OR j.node = w.of_node)
      AND (w.also_running OR j.state <> 'RUNNING')
      AND (SELECT is_current FROM ledger_current)
    RETURNING j.*, w.*
)
INSERT INTO job_finished
    ({given}, created_at, attempt, counted, dispatched_at, running_at, past_attempts, outcome, dead, result, error,
     finished_at, released_at)
SELECT {given}, created_at, attempt, counted + counts, dispatched_at, running_at,
       CASE WHEN node IS NULL OR outcome = 'succeeded' THEN past_attempts
            ELSE CASE WHEN attempt > $13 THEN substr(past_attempts, strpos(past_attempts, E'\n') + 1)
                      ELSE past_attempts END
                 || json_build_object('attempt', attempt, 'node', node, 'ended', ended, 'reason', coalesce(error, ''),
                                      'at', (extract(epoch FROM now()) * 1000000)::bigint) || E'\n'
       END,
       outcome, dead, result, error, now(), CASE WHEN is_free OR node IS NULL THEN now() END
FROM gone
RETURNING id, (extract(epoch FROM finished_at) * 1000000)::bigint AS at,
          {mark}
