-- A new session; answers its time, or nothing where it is there already.
-- ?1 session, ?2 pool, ?3 and ?4 route or NULL, ?5 labels, ?6 ordering, ?7 idle time in ms, ?8 tenant or NULL,
-- ?9 the transaction's time
INSERT INTO session (session, pool, route_source, route_target, requires, ordering, idle_ms, purged_seq, tenant, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9)
ON CONFLICT DO NOTHING
RETURNING created_at
