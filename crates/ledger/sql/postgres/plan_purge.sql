-- Forgets plans that ended long ago, with their tasks and histories; answers them. Their own leases go too. One whose
-- lease somebody has stays, and takes nobody's place among those that are looked at.
-- $1 age in ms, $2 limit
WITH old AS (
    SELECT p.id
    FROM plan p
    WHERE p.finished_at < now() - $1 * interval '1 millisecond'
      AND NOT EXISTS (
          SELECT FROM lease l
          WHERE l.resource = 'plan:' || p.id AND l.owner IS NOT NULL AND l.expires_at >= now()
      )
    ORDER BY p.finished_at
    LIMIT $2
    FOR UPDATE OF p SKIP LOCKED
), freed AS (
    DELETE FROM lease l
    USING old
    WHERE l.resource = 'plan:' || old.id AND (l.owner IS NULL OR l.expires_at < now())
    RETURNING l.resource
)
DELETE FROM plan p
USING old
WHERE p.id = old.id
  AND ('plan:' || old.id IN (SELECT resource FROM freed)
       OR NOT EXISTS (SELECT FROM lease l WHERE l.resource = 'plan:' || old.id))
RETURNING p.id
