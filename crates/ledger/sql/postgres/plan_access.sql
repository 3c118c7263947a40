-- The tenants of the tasks of these plans, and the pools that their stages ask for (NULL for none), each once for a plan. A line
-- with a mark is there only if pools are asked for. Neither contexts nor payloads leave the database.
-- $1 plans
SELECT DISTINCT plan, FALSE AS is_pool, tenant AS name
FROM plan_task
WHERE plan = ANY ($1::uuid[])
UNION ALL --? pools
SELECT DISTINCT t.plan, TRUE, s.stage ->> 'pool' --? pools
FROM plan_task t --? pools
JOIN plan_definition d ON d.task = t.id AND d.version = t.definition --? pools
CROSS JOIN json_array_elements(d.stages::json) AS s (stage) --? pools
WHERE t.plan = ANY ($1::uuid[]) --? pools
