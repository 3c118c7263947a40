-- The names of the stages in definitions of a task, in their order.
-- ?1 task, ?2 JSON array of versions
SELECT d.version, s.value ->> 'name' AS name
FROM plan_definition d
CROSS JOIN json_each(d.stages) AS s
WHERE d.task = ?1 AND d.version IN (SELECT value FROM json_each(?2))
ORDER BY d.version, s.key
