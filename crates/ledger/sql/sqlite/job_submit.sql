-- New jobs, CREATED or with their first attempt at once; answers them.
-- ?1 JSON array of {id, lane, seq, session, tenant, pool, source, target, requires, priority, timeout_ms,
-- max_attempts, initial_ms, factor_percent, max_ms, on_recovery, payload, retry_of, due_at, node, holder,
-- client_ref},
-- ?2 the transaction's time
INSERT INTO job
    (id, lane, seq, session, tenant, pool, route_source, route_target, requires, priority, timeout_ms, max_attempts,
     backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, retry_of, created_at, due_at,
     state, attempt, counted, node, holder, dispatched_at, past_attempts, client_ref)
SELECT w.value ->> 'id', w.value ->> 'lane', w.value ->> 'seq', w.value ->> 'session', w.value ->> 'tenant',
       w.value ->> 'pool', w.value ->> 'source', w.value ->> 'target', w.value ->> 'requires',
       w.value ->> 'priority', w.value ->> 'timeout_ms', w.value ->> 'max_attempts', w.value ->> 'initial_ms',
       w.value ->> 'factor_percent', w.value ->> 'max_ms', w.value ->> 'on_recovery', w.value ->> 'payload',
       w.value ->> 'retry_of', ?2, w.value ->> 'due_at',
       iif(w.value ->> 'node' IS NULL, 'CREATED', 'DISPATCHED'), iif(w.value ->> 'node' IS NULL, 0, 1),
       0, w.value ->> 'node', w.value ->> 'holder', iif(w.value ->> 'node' IS NULL, NULL, ?2), '',
       w.value ->> 'client_ref'
FROM json_each(?1) AS w
RETURNING id
