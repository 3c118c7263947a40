-- Forgets the incarnations that ended long ago: such an id never comes back. lease_purge follows.
-- $1 age in ms, $2 limit
DELETE FROM instance
WHERE 'instance:' || instance_id IN (
    SELECT resource FROM lease
    WHERE resource > 'instance:' AND resource < 'instance;'
      AND expires_at < now() - $1 * interval '1 millisecond'
    ORDER BY resource
    LIMIT $2
)
