-- The first of a lane's delayed jobs that are due wait from now on, as if they had never been delayed; answers them.
-- ?1 lane, ?2 limit
UPDATE job
SET due_at = NULL
WHERE id IN (
    SELECT id
    FROM job INDEXED BY job_delayed
    WHERE lane = ?1 AND node IS NULL AND due_at IS NOT NULL
      AND due_at <= {now}
    ORDER BY due_at, id
    LIMIT ?2
)
RETURNING id, priority, tenant, pool, requires, route_source, route_target
