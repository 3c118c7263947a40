-- The next unfinished jobs that a bulk operation is about, the oldest first, among so many; and the last of these, with their
-- number. A line with a mark is there only if the filter asks for it.
-- $1 behind this id, $2 before this time, $3 limit, $4 session, $5 tenant, $6 pool, $7 kind, $8 state,
-- $9 before this id: later ones were made after that time, and are not read; $10 how many are read,
-- $11 the one tenant and $12 the one pool that the caller sees
WITH scanned AS (
    SELECT id, created_at, session, tenant, pool, kind, state, stage
    FROM job
    WHERE id > $1 AND id < $9
    ORDER BY id
    LIMIT $10
)
SELECT id, 0 AS jobs
FROM (
    SELECT id
    FROM scanned
    WHERE created_at < $2
      AND session = $4 --? session
      AND tenant = $5 --? tenant
      AND pool = $6 --? pool
      AND kind = $7 --? kind
      AND state = $8 --? state
      AND stage IS NULL --? no_stage
      AND (session IS NULL AND tenant = $11 --? only_tenant
           OR EXISTS (SELECT 1 FROM session s WHERE s.session = scanned.session AND s.tenant = $11)) --? only_tenant
      AND (session IS NULL AND pool = $12 --? only_pool
           OR EXISTS (SELECT 1 FROM session s WHERE s.session = scanned.session AND s.pool = $12)) --? only_pool
    ORDER BY id
    LIMIT $3
) AS found
UNION ALL
SELECT id, (SELECT count(*) FROM scanned) AS jobs
FROM (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last_scanned
