-- The groups of a lane that have a job that may be dispatched at once: one step of the index for each, whatever the
-- number of their jobs.
-- $1 lane, $2 from this group, $3 limit
WITH RECURSIVE seen AS (
    (SELECT pool, tenant, requires, route_source, route_target
     FROM job
     WHERE lane = $1 AND node IS NULL AND due_at IS NULL
       AND pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '') >= $2
     ORDER BY pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '')
     LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM seen
    CROSS JOIN LATERAL (
        SELECT pool, tenant, requires, route_source, route_target
        FROM job
        WHERE lane = $1 AND node IS NULL AND due_at IS NULL
          AND pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '')
            > seen.pool || '/' || seen.tenant || '/' || seen.requires || '/' || coalesce(seen.route_source || ':' || seen.route_target, '')
        ORDER BY pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '')
        LIMIT 1
    ) AS next
)
SELECT pool, tenant, requires, route_source, route_target FROM seen LIMIT $3
