-- How many tasks of each status these plans have.
-- ?1 JSON array of plans
SELECT plan, status, count(*) AS tasks
FROM plan_task
WHERE plan IN (SELECT value FROM json_each(?1))
GROUP BY plan, status
