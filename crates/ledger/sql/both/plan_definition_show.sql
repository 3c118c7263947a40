-- The stages of a task's definition.
-- $1 task, $2 version
SELECT stages
FROM plan_definition
WHERE task = $1 AND version = $2
