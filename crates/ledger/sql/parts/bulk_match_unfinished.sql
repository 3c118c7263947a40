-- Those of the scanned jobs that a bulk operation is about. A line with a mark is there only if the filter asks for it.
-- $2 before this time, $4 session, $5 tenant, $6 pool, $7 kind, $8 state, $11 the one tenant and $12 the one pool that the
-- caller sees
created_at < $2
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
