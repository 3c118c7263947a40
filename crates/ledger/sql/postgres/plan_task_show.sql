-- A task.
-- $1 task
{shown_task_postgres}
WHERE t.id = $1
