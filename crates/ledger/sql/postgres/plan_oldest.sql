-- The plan that is forgotten next, locked: as plan_purge finds it.
-- $1 age in ms
SELECT p.id
FROM plan p
WHERE p.finished_at < now() - $1 * interval '1 millisecond'
  AND NOT EXISTS (
      SELECT FROM lease l
      WHERE l.resource = 'plan:' || p.id AND l.owner IS NOT NULL AND l.expires_at >= now()
  )
ORDER BY p.finished_at
LIMIT 1
FOR UPDATE OF p SKIP LOCKED
