-- The tasks of plans that are not over, by their statuses, and the stages that are UNKNOWN of those that somebody has to decide on:
-- how many, and for how many milliseconds the oldest has been so. A cancelled task waits for nobody. Tasks are read plan by plan:
-- most plans are over.
WITH live AS (
    SELECT t.id, t.run, t.status, t.updated_at
    FROM plan p
    CROSS JOIN LATERAL (
        SELECT id, run, status, updated_at
        FROM plan_task
        WHERE plan = p.id
        OFFSET 0
    ) AS t
    WHERE p.status IN ('CREATED', 'RUNNING', 'PAUSED', 'ATTENTION')
)
SELECT status AS state, count(*) AS tasks,
       (extract(epoch FROM now() - min(updated_at)) * 1000)::bigint AS oldest_ms
FROM live
GROUP BY status
UNION ALL
SELECT s.status, count(*), (extract(epoch FROM now() - min(s.updated_at)) * 1000)::bigint
FROM live t
JOIN plan_stage_run s ON s.task = t.id AND s.run = t.run AND s.status = 'UNKNOWN'
WHERE t.status <> 'CANCELLED'
GROUP BY s.status
