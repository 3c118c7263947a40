-- The plan that is forgotten next: as plan_purge finds it.
-- ?1 age in ms, ?2 the transaction's time
SELECT p.id
FROM plan p
WHERE p.finished_at < ?2 - ?1 * 1000
  AND NOT EXISTS (
      SELECT 1 FROM lease l
      WHERE l.resource = 'plan:' || p.id AND l.owner IS NOT NULL AND l.expires_at >= ?2
  )
ORDER BY p.finished_at
LIMIT 1
