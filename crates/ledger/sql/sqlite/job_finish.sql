-- Copies jobs to where the finished ones are; answers those that were as said, with the
-- transaction's time. job_forget follows for these. An
-- attempt under way that did not succeed becomes a past one.
-- ?1 JSON array of {id, lane, attempt, node, also_running, counts, ended, outcome, dead, result, error, is_free},
-- ?2 the transaction's time, ?3 most past attempts kept
INSERT INTO job_finished
    ({given}, created_at, attempt, counted, dispatched_at, running_at, past_attempts, outcome, dead, result, error,
     finished_at, released_at)
SELECT {given of j}, j.created_at, j.attempt, j.counted + (w.value ->> 'counts'), j.dispatched_at, j.running_at,
       CASE WHEN j.node IS NULL OR w.value ->> 'outcome' = 'succeeded' THEN j.past_attempts
            ELSE CASE WHEN j.attempt > ?3 THEN substr(j.past_attempts, instr(j.past_attempts, char(10)) + 1)
                      ELSE j.past_attempts END
                 || json_object('attempt', j.attempt, 'node', j.node, 'ended', w.value ->> 'ended',
                                'reason', coalesce(w.value ->> 'error', ''), 'at', ?2) || char(10)
       END,
       w.value ->> 'outcome', w.value ->> 'dead', w.value ->> 'result', w.value ->> 'error', ?2,
       iif(w.value ->> 'is_free' OR j.node IS NULL, ?2, NULL)
FROM json_each(?1) AS w
JOIN job j ON j.id = w.value ->> 'id'
WHERE (w.value ->> 'lane' IS NULL OR j.lane = w.value ->> 'lane')
  AND (w.value ->> 'attempt' IS NULL OR j.attempt = w.value ->> 'attempt' AND j.node IS NOT NULL)
  AND (w.value ->> 'node' IS NULL OR j.node = w.value ->> 'node')
  AND (w.value ->> 'also_running' OR j.state <> 'RUNNING')
RETURNING id, ?2 AS at
