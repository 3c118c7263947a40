-- Plans that need an owner and have none that lives, in the order of their ids.
-- ?1 the caller, whose own plans are not among them, ?2 limit
WITH clock AS (
    SELECT {now} AS at
)
SELECT p.id, held.owner
FROM plan p
CROSS JOIN clock
LEFT JOIN lease held ON held.resource = 'plan:' || p.id AND held.owner IS NOT NULL AND held.expires_at > clock.at
LEFT JOIN lease life ON life.resource = 'instance:' || held.owner AND life.owner = held.owner
                        AND life.expires_at > clock.at
WHERE p.needs_owner AND held.owner IS NOT ?1 AND life.resource IS NULL
ORDER BY p.id
LIMIT ?2
