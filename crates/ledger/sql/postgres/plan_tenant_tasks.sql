-- The tasks of a tenant, newest first.
-- $1 tenant, $2 before this task, $3 limit
{shown_task_postgres}
WHERE t.tenant = $1 AND t.id < $2
ORDER BY t.id DESC
LIMIT $3
