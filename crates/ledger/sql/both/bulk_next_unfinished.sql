-- The next unfinished jobs that a bulk operation is about, the oldest first. A line with a mark is there only if the filter asks for it.
-- $1 behind this id, $2 before this time, $3 limit, $4 session, $5 tenant, $6 pool, $7 kind, $8 state,
-- $9 before this id: later ones were made after that time, and are not read
SELECT id
FROM job
WHERE id > $1 AND id < $9 AND created_at < $2
  AND session = $4 --? session
  AND tenant = $5 --? tenant
  AND pool = $6 --? pool
  AND kind = $7 --? kind
  AND state = $8 --? state
  AND stage IS NULL --? no_stage
ORDER BY id
LIMIT $3
