-- A task.
-- ?1 task
{shown_task_sqlite}
WHERE t.id = ?1
