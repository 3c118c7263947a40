-- The groups of a lane that have a job that may be dispatched at once: a step or two of the index for each, whatever
-- the number of their jobs.
-- ?1 lane, ?2 from this pool, ?3 and tenant, ?4 limit
WITH RECURSIVE seen AS (
    SELECT * FROM (
        SELECT pool, tenant
        FROM job INDEXED BY job_waiting
        WHERE lane = ?1 AND node IS NULL AND due_at IS NULL AND (pool, tenant) >= (?2, ?3)
        ORDER BY pool, tenant
        LIMIT 1
    )
    UNION ALL
    SELECT next.pool, next.tenant
    FROM seen
    JOIN job AS next ON next.rowid = coalesce(
        (SELECT rowid
         FROM job INDEXED BY job_waiting
         WHERE lane = ?1 AND node IS NULL AND due_at IS NULL AND pool = seen.pool AND tenant > seen.tenant
         ORDER BY tenant
         LIMIT 1),
        (SELECT rowid
         FROM job INDEXED BY job_waiting
         WHERE lane = ?1 AND node IS NULL AND due_at IS NULL AND pool > seen.pool
         ORDER BY pool, tenant
         LIMIT 1)
    )
)
SELECT pool, tenant FROM seen LIMIT ?4
