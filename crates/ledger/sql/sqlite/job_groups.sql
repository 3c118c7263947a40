-- The groups of a lane that have a job that may be dispatched at once: one step of the index for each, whatever the
-- number of their jobs.
-- ?1 lane, ?2 from this group, ?3 limit
WITH RECURSIVE seen AS (
    SELECT * FROM (
        SELECT pool, tenant, requires, route_source, route_target
        FROM job INDEXED BY job_waiting_group
        WHERE lane = ?1 AND node IS NULL AND due_at IS NULL
          AND pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '') >= ?2
        ORDER BY pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '')
        LIMIT 1
    )
    UNION ALL
    SELECT next.pool, next.tenant, next.requires, next.route_source, next.route_target
    FROM seen
    JOIN job AS next ON next.rowid = (
        SELECT rowid
        FROM job INDEXED BY job_waiting_group
        WHERE lane = ?1 AND node IS NULL AND due_at IS NULL
          AND pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '')
            > seen.pool || '/' || seen.tenant || '/' || seen.requires || '/' || coalesce(seen.route_source || ':' || seen.route_target, '')
        ORDER BY pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '')
        LIMIT 1
    )
)
SELECT pool, tenant, requires, route_source, route_target FROM seen LIMIT ?3
