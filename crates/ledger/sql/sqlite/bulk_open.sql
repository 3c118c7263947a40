-- The bulk operations under way, the oldest first, each with whether its owner's lease is live, and whether somebody
-- cancelled it.
-- ?1 limit
SELECT b.id, b.principal, b.owner, b.token,
       EXISTS (
           SELECT 1 FROM lease l
           WHERE l.resource = 'instance:' || b.owner AND l.owner = b.owner
             AND l.expires_at > {now}
       ) AS is_owned,
       b.status = 'CANCELLING' AS is_cancelling
FROM bulk b
WHERE b.finished_at IS NULL
ORDER BY b.id
LIMIT ?1
