-- Plans that need an owner and have none that lives, in the order of their ids. However the server joins them, it reads no leases but
-- those of plans and of instances.
-- $1 the caller, whose own plans are not among them, $2 limit
SELECT p.id, held.owner
FROM plan p
LEFT JOIN lease held ON held.resource = 'plan:' || p.id AND held.resource BETWEEN 'plan:' AND 'plan:~'
                        AND held.owner IS NOT NULL AND held.expires_at > now()
LEFT JOIN lease life ON life.resource = 'instance:' || held.owner AND life.resource BETWEEN 'instance:' AND 'instance:~'
                        AND life.owner = held.owner AND life.expires_at > now()
WHERE p.needs_owner AND held.owner IS DISTINCT FROM $1 AND life.resource IS NULL
ORDER BY p.id
LIMIT $2
