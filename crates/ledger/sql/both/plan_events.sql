-- What happened to a plan, or to one of its tasks, in order.
-- $1 plan, $2 task or NULL, $3 behind this number, $4 limit
SELECT seq, task, document, at
FROM plan_event
WHERE plan = $1 AND seq > $3 AND (CAST($2 AS text) IS NULL OR CAST(task AS text) = $2)
ORDER BY seq
LIMIT $4
