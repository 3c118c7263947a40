-- A task.
-- $1 task
{shown_task}
WHERE t.id = $1
