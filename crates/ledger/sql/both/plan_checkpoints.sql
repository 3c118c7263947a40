-- A task's checkpoints, newest first.
-- $1 task, $2 before this version, $3 limit
SELECT version, run, definition, completed, context, saved_at
FROM plan_checkpoint
WHERE task = $1 AND version < $2
ORDER BY version DESC
LIMIT $3
