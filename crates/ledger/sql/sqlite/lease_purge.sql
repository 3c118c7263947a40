-- Forgets the leases of incarnations that ended long ago and are written down no more.
-- ?1 age in ms, ?2 limit
DELETE FROM lease
WHERE resource IN (
    SELECT l.resource FROM lease l
    WHERE l.resource > 'instance:' AND l.resource < 'instance;'
      AND l.expires_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?1 * 1000
      AND NOT EXISTS (SELECT 1 FROM instance i WHERE 'instance:' || i.instance_id = l.resource)
    ORDER BY l.resource
    LIMIT ?2
)
