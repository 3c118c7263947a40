-- The tasks of a plan with one of these statuses in their order.
-- ?1 plan, ?2 behind this place (-1 for the start), ?3 limit, ?4 JSON array of statuses
{shown_task_sqlite}
WHERE t.plan = ?1 AND t.place > ?2 AND t.status IN (SELECT value FROM json_each(?4))
ORDER BY t.place
LIMIT ?3
