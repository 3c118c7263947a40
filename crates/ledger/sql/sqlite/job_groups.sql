-- The groups of a lane that have a job that may be dispatched at once: a few steps of the index for each, whatever
-- the number of their jobs.
-- ?1 lane, ?2 from this pool, ?3 and tenant, ?4 and labels, ?5 and route, ?6 limit
WITH RECURSIVE seen AS (
    SELECT * FROM (
        SELECT pool, tenant, requires, route_source, route_target
        FROM job INDEXED BY job_waiting
        WHERE lane = ?1 AND node IS NULL AND due_at IS NULL
          AND (pool, tenant, requires, coalesce(route_source || ':' || route_target, '')) >= (?2, ?3, ?4, ?5)
        ORDER BY pool, tenant, requires, coalesce(route_source || ':' || route_target, '')
        LIMIT 1
    )
    UNION ALL
    SELECT next.pool, next.tenant, next.requires, next.route_source, next.route_target
    FROM seen
    JOIN job AS next ON next.rowid = coalesce(
        (SELECT rowid
         FROM job INDEXED BY job_waiting
         WHERE lane = ?1 AND node IS NULL AND due_at IS NULL
           AND pool = seen.pool AND tenant = seen.tenant AND requires = seen.requires
           AND coalesce(route_source || ':' || route_target, '') > coalesce(seen.route_source || ':' || seen.route_target, '')
         ORDER BY coalesce(route_source || ':' || route_target, '')
         LIMIT 1),
        (SELECT rowid
         FROM job INDEXED BY job_waiting
         WHERE lane = ?1 AND node IS NULL AND due_at IS NULL
           AND pool = seen.pool AND tenant = seen.tenant AND requires > seen.requires
         ORDER BY requires, coalesce(route_source || ':' || route_target, '')
         LIMIT 1),
        (SELECT rowid
         FROM job INDEXED BY job_waiting
         WHERE lane = ?1 AND node IS NULL AND due_at IS NULL
           AND pool = seen.pool AND tenant > seen.tenant
         ORDER BY tenant, requires, coalesce(route_source || ':' || route_target, '')
         LIMIT 1),
        (SELECT rowid
         FROM job INDEXED BY job_waiting
         WHERE lane = ?1 AND node IS NULL AND due_at IS NULL
           AND pool > seen.pool
         ORDER BY pool, tenant, requires, coalesce(route_source || ':' || route_target, '')
         LIMIT 1)
    )
)
SELECT pool, tenant, requires, route_source, route_target FROM seen LIMIT ?6
