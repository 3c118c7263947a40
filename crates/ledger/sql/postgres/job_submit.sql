-- New jobs, CREATED or with their first attempt at once; answers them.
-- $1 ids, $2 lanes, $3 places in the session, $4 sessions or NULL, $5 tenants, $6 pools, $7 and $8 routes or NULL,
-- $9 labels, $10 priorities, $11 time-outs in ms, $12 most attempts, $13 to $15 backoffs, $16 on recovery,
-- $17 payloads, $18 jobs repeated or NULL, $19 due in microseconds since 1970 or NULL, $20 nodes or NULL,
-- $21 holders or NULL, $22 their clients' names for them or NULL
INSERT INTO job
    (id, lane, seq, session, tenant, pool, route_source, route_target, requires, priority, timeout_ms, max_attempts,
     backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, retry_of, created_at, due_at,
     state, attempt, counted, node, holder, dispatched_at, past_attempts, client_ref)
SELECT w.id, w.lane, w.seq, w.session, w.tenant, w.pool, w.route_source, w.route_target, w.requires, w.priority,
       w.timeout_ms, w.max_attempts, w.backoff_initial_ms, w.backoff_factor_percent, w.backoff_max_ms,
       w.on_recovery, w.payload, w.retry_of, now(), 'epoch'::timestamptz + w.due_at * interval '1 microsecond',
       CASE WHEN w.node IS NULL THEN 'CREATED' ELSE 'DISPATCHED' END, CASE WHEN w.node IS NULL THEN 0 ELSE 1 END,
       0, w.node, w.holder, CASE WHEN w.node IS NULL THEN NULL ELSE now() END, '', w.client_ref
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
            $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
            $16::text[], $17::text[], $18::uuid[], $19::bigint[], $20::text[], $21::text[], $22::text[])
     AS w (id, lane, seq, session, tenant, pool, route_source, route_target, requires, priority, timeout_ms,
           max_attempts, backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, retry_of,
           due_at, node, holder, client_ref)
ORDER BY w.id
RETURNING id
