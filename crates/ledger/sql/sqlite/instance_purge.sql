-- Forgets the incarnations that ended long ago: such an id never comes back. lease_purge follows.
-- ?1 age in ms, ?2 limit
DELETE FROM instance
WHERE 'instance:' || instance_id IN (
    SELECT resource FROM lease
    WHERE resource > 'instance:' AND resource < 'instance;' AND expires_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?1 * 1000
    ORDER BY resource
    LIMIT ?2
)
