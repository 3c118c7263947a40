-- The plan of a task.
-- $1 task
SELECT plan FROM plan_task WHERE id = $1
