-- The names of sessions, in their order. A line with a mark is there only if the filter asks for it.
-- $1 behind this session, $2 limit, $3 tenant, $4 pool
SELECT session
FROM session
WHERE session > $1
  AND closed_at IS NULL --? open
  AND closed_at IS NOT NULL --? closed
  AND tenant = $3 --? tenant
  AND pool = $4 AND pool <> '' --? pool
ORDER BY session
LIMIT $2
