-- What lanes write most, as one statement that is a transaction by itself: new jobs, due at once, those with keys where
-- these are new, attempts that begin, and good ends, of those lanes for which the fence holds. Answers these lanes and the
-- jobs that were as said, with the transaction's time.
-- $1 to $3 leases, see fence_lock; $4 to $25 new jobs, see job_submit; $26 to $30 attempts, see job_dispatch;
-- $31 to $34 the new jobs' keys or NULL, see key_keep; $35 to $39 ended jobs: ids, lanes, attempts, nodes, results
WITH held AS MATERIALIZED (
    SELECT l.resource
    FROM lease l
    JOIN unnest($1::text[], $2::bigint[], $3::text[]) AS w (resource, fencing_token, owner)
      ON l.resource = w.resource AND l.fencing_token = w.fencing_token
    WHERE l.owner = w.owner
    ORDER BY l.resource
    FOR KEY SHARE OF l SKIP LOCKED
),
wanted AS MATERIALIZED (
    SELECT w.*
    FROM unnest($4::uuid[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
                $12::text[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[],
                $19::text[], $20::text[], $21::uuid[], $22::bigint[], $23::text[], $24::text[], $25::text[],
                $31::text[], $32::text[], $33::bytea[], $34::text[])
         AS w (id, lane, seq, session, tenant, pool, route_source, route_target, requires, priority, timeout_ms,
               max_attempts, backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, retry_of,
               due_at, node, holder, client_ref, scope, key, body_hash, answer)
    JOIN held h ON h.resource = w.lane
),
kept AS (
    INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
    SELECT w.scope, w.key, w.body_hash, w.answer, now()
    FROM wanted w
    WHERE w.key IS NOT NULL
    ORDER BY w.scope COLLATE "C", w.key COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING scope, key
),
made AS (
    INSERT INTO job
        (id, lane, seq, session, tenant, pool, route_source, route_target, requires, priority, timeout_ms, max_attempts,
         backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, retry_of, created_at, due_at,
         state, attempt, counted, node, holder, dispatched_at, past_attempts, client_ref)
    SELECT w.id, w.lane, w.seq, w.session, w.tenant, w.pool, w.route_source, w.route_target, w.requires, w.priority,
           w.timeout_ms, w.max_attempts, w.backoff_initial_ms, w.backoff_factor_percent, w.backoff_max_ms,
           w.on_recovery, w.payload, w.retry_of, now(), 'epoch'::timestamptz + w.due_at * interval '1 microsecond',
           CASE WHEN w.node IS NULL THEN 'CREATED' ELSE 'DISPATCHED' END, CASE WHEN w.node IS NULL THEN 0 ELSE 1 END,
           0, w.node, w.holder, CASE WHEN w.node IS NULL THEN NULL ELSE now() END, '', w.client_ref
    FROM wanted w
    WHERE w.key IS NULL OR EXISTS (SELECT FROM kept k WHERE k.scope = w.scope AND k.key = w.key)
    ORDER BY w.id
    RETURNING id
),
begun AS (
    UPDATE job j
    SET state         = 'DISPATCHED',
        attempt       = w.attempt,
        node          = w.node,
        holder        = w.holder,
        dispatched_at = now(),
        due_at        = NULL
    FROM unnest($26::uuid[], $27::text[], $28::bigint[], $29::text[], $30::text[]) AS w (id, lane, attempt, node, holder)
    JOIN held h ON h.resource = w.lane
    WHERE j.id = w.id AND j.lane = w.lane AND j.state = 'CREATED' AND j.attempt = w.attempt - 1
    RETURNING j.id
),
gone AS (
    DELETE FROM job j
    USING (
        SELECT e.*
        FROM unnest($35::uuid[], $36::text[], $37::bigint[], $38::text[], $39::text[])
             AS e (which, of_lane, of_attempt, of_node, result)
        JOIN held h ON h.resource = e.of_lane
        ORDER BY e.which
    ) AS w
    -- Written so that the node is compared and never looked up: each row is found by its id.
    WHERE j.id = w.which AND j.lane = w.of_lane AND j.attempt = w.of_attempt AND j.node IS NOT DISTINCT FROM w.of_node
    RETURNING j.*, w.result
),
moved AS (
    INSERT INTO job_finished
        (id, lane, seq, session, tenant, pool, route_source, route_target, requires, priority, timeout_ms, max_attempts,
         backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, retry_of, created_at, due_at,
         attempt, counted, node, holder, dispatched_at, running_at, past_attempts, outcome, dead, result, finished_at,
         released_at, client_ref)
    SELECT id, lane, seq, session, tenant, pool, route_source, route_target, requires, priority, timeout_ms, max_attempts,
           backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, retry_of, created_at, due_at,
           attempt, counted, node, holder, dispatched_at, running_at, past_attempts, 'succeeded', false, result, now(),
           now(), client_ref
    FROM gone
    RETURNING id
)
SELECT resource, NULL::uuid AS id, (extract(epoch FROM now()) * 1000000)::bigint AS at FROM held
UNION ALL
SELECT NULL, id, (extract(epoch FROM now()) * 1000000)::bigint FROM made
UNION ALL
SELECT NULL, id, (extract(epoch FROM now()) * 1000000)::bigint FROM begun
UNION ALL
SELECT NULL, id, (extract(epoch FROM now()) * 1000000)::bigint FROM moved
