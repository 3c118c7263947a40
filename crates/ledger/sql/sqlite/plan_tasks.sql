-- The tasks of a plan in their order.
-- ?1 plan, ?2 behind this place (-1 for the start), ?3 limit
{shown_task_sqlite}
WHERE t.plan = ?1 AND t.place > ?2
ORDER BY t.place
LIMIT ?3
