-- The groups of a lane that have a job that may be dispatched at once: one step of the index for each, whatever the
-- number of their jobs.
-- $1 lane, $2 from this pool, $3 and tenant, $4 limit
WITH RECURSIVE seen AS (
    (SELECT pool, tenant
     FROM job
     WHERE lane = $1 AND node IS NULL AND due_at IS NULL AND (pool, tenant) >= ($2, $3)
     ORDER BY pool, tenant
     LIMIT 1)
    UNION ALL
    SELECT next.pool, next.tenant
    FROM seen
    CROSS JOIN LATERAL (
        SELECT pool, tenant
        FROM job
        WHERE lane = $1 AND node IS NULL AND due_at IS NULL AND (pool, tenant) > (seen.pool, seen.tenant)
        ORDER BY pool, tenant
        LIMIT 1
    ) AS next
)
SELECT pool, tenant FROM seen LIMIT $4
