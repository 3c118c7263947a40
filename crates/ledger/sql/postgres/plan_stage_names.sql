-- The names of the stages in definitions of a task, in their order.
-- $1 task, $2 versions
SELECT d.version, s.stage ->> 'name' AS name
FROM plan_definition d
CROSS JOIN json_array_elements(d.stages::json) WITH ORDINALITY AS s (stage, place)
WHERE d.task = $1 AND d.version = ANY ($2::bigint[])
ORDER BY d.version, s.place
