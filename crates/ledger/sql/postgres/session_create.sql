-- A new session; answers its time, or nothing where it is there already, or where its token has as many open sessions as it
-- may have.
-- $1 session, $2 pool, $3 and $4 route or NULL, $5 labels, $6 ordering, $7 idle time in ms, $8 tenant or NULL,
-- $9 token or NULL, $10 most open sessions of it
INSERT INTO session (session, pool, route_source, route_target, requires, ordering, idle_ms, purged_seq, tenant, principal, created_at)
SELECT $1, $2, $3, $4, $5, $6, $7, 0, $8, $9, now()
WHERE $9 IS NULL
   OR (SELECT count(*)
       FROM (SELECT 1 FROM session WHERE principal = $9 AND principal IS NOT NULL AND closed_at IS NULL LIMIT $10) AS opened) < $10
ON CONFLICT DO NOTHING
RETURNING created_at
