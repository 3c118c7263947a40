-- The columns that a list shows of a job, finished or not: all but its payload, its stage and its past attempts. Of these, which
-- may be 200 KiB long, each list says what it reads.
id, lane, seq, client_ref, retry_of, created_at, due_at, attempt, counted, node, holder, dispatched_at, running_at,
session, tenant, pool, route_source, route_target, requires, priority, timeout_ms, max_attempts, backoff_initial_ms,
backoff_factor_percent, backoff_max_ms, on_recovery, kind, metadata, traceparent, '' AS payload, CAST(NULL AS text) AS stage
