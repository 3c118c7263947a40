-- Deletes checkpoints of a plan's tasks. What a task continues from is in its own row.
-- $1 plan, $2 limit
DELETE FROM plan_checkpoint
WHERE (task, version) IN (
    SELECT c.task, c.version
    FROM plan_task t
    JOIN plan_checkpoint c ON c.task = t.id
    WHERE t.plan = $1
    LIMIT $2
)
