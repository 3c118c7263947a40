-- The first of a lane's delayed jobs that are due wait from now on, as if they had never been delayed; answers them.
-- $1 lane, $2 limit
WITH mine AS (
    SELECT id
    FROM job
    WHERE lane = $1 AND node IS NULL AND due_at IS NOT NULL AND due_at <= now()
    ORDER BY due_at, id
    LIMIT $2
    FOR UPDATE
)
UPDATE job j
SET due_at = NULL
FROM mine
WHERE j.id = mine.id
RETURNING j.id, j.priority, j.tenant, j.pool, j.requires, j.route_source, j.route_target
