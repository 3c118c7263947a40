-- The tasks of plans that are not over, by their statuses, and the stages that are UNKNOWN of those that somebody has to decide on:
-- how many, and for how many milliseconds the oldest has been so. A cancelled task waits for nobody. Tasks are read plan by plan:
-- most plans are over.
WITH clock AS (
    SELECT {now_ms} AS ms
), live AS (
    SELECT t.id, t.run, t.status, t.updated_at
    FROM plan p
    CROSS JOIN plan_task t ON t.plan = p.id
    WHERE p.status IN ('CREATED', 'RUNNING', 'PAUSED', 'ATTENTION')
)
SELECT status AS state, count(*) AS tasks, (SELECT ms FROM clock) - min(updated_at) / 1000 AS oldest_ms
FROM live
GROUP BY status
UNION ALL
SELECT s.status, count(*), (SELECT ms FROM clock) - min(s.updated_at) / 1000
FROM live t
CROSS JOIN plan_stage_run s ON s.task = t.id AND s.run = t.run AND s.status = 'UNKNOWN'
WHERE t.status <> 'CANCELLED'
GROUP BY s.status
