-- Forgets the leases of incarnations that ended long ago and are written down no more.
-- $1 age in ms, $2 limit
DELETE FROM lease
WHERE resource IN (
    SELECT l.resource FROM lease l
    WHERE l.resource > 'instance:' AND l.resource < 'instance;'
      AND l.expires_at < now() - $1 * interval '1 millisecond'
      AND NOT EXISTS (SELECT FROM instance i WHERE 'instance:' || i.instance_id = l.resource)
    ORDER BY l.resource
    LIMIT $2
)
