-- Forgets the incarnations that ended long ago, or began long ago and never had a lease: such an id never
-- comes back. Who has its own lease could renew it: instance_end comes before. lease_purge follows.
-- $1 age in ms, $2 limit
DELETE FROM instance
WHERE instance_id IN (
    SELECT i.instance_id
    FROM instance i
    LEFT JOIN lease l ON l.resource = 'instance:' || i.instance_id
                         AND l.resource BETWEEN 'instance:' AND 'instance:~'
    WHERE coalesce(l.expires_at, i.started_at) < now() - $1 * interval '1 millisecond'
      AND l.owner IS DISTINCT FROM i.instance_id
    ORDER BY i.instance_id
    LIMIT $2
)
