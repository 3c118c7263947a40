-- Pauses a pool from now on, whether it was paused before or not.
-- ?1 pool, ?2 reason, ?3 principal, ?4 for so many ms, or NULL, ?5 the transaction's time
INSERT INTO pool_pause (pool, reason, principal, since, until)
VALUES (?1, ?2, ?3, ?5, ?5 + ?4 * 1000)
ON CONFLICT (pool) DO UPDATE
SET reason = excluded.reason, principal = excluded.principal, since = excluded.since, until = excluded.until
RETURNING pool, reason, principal, since, until
