-- Deletes the stages of a plan's runs, but those whose results are waited for.
-- $1 plan, $2 limit
DELETE FROM plan_stage_run
WHERE (task, run, stage) IN (
    SELECT r.task, r.run, r.stage
    FROM plan_task t
    JOIN plan_stage_run r ON r.task = t.id
    WHERE t.plan = $1 AND r.status NOT IN ('RUNNING', 'UNKNOWN')
    LIMIT $2
)
