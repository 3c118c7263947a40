-- Forgets plans that ended long ago, with their tasks and histories; answers them. plan_free follows for these. One whose
-- lease somebody has stays.
-- ?1 age in ms, ?2 limit, ?3 the transaction's time
DELETE FROM plan
WHERE id IN (
    SELECT p.id
    FROM plan p
    WHERE p.finished_at < ?3 - ?1 * 1000
      AND NOT EXISTS (
          SELECT 1 FROM lease l
          WHERE l.resource = 'plan:' || p.id AND l.owner IS NOT NULL AND l.expires_at >= ?3
      )
    ORDER BY p.finished_at
    LIMIT ?2
)
RETURNING id
