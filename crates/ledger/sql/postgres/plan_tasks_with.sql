-- The tasks of a plan with one of these statuses in their order.
-- $1 plan, $2 behind this place (-1 for the start), $3 limit, $4 statuses
{shown_task_postgres}
WHERE t.plan = $1 AND t.place > $2 AND t.status = ANY ($4::text[])
ORDER BY t.place
LIMIT $3
