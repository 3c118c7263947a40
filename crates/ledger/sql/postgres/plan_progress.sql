-- How many tasks of each status these plans have.
-- $1 plans
SELECT plan, status, count(*) AS tasks
FROM plan_task
WHERE plan = ANY ($1::uuid[])
GROUP BY plan, status
