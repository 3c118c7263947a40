-- New definitions of tasks.
-- ?1 JSON array of {task, version, stages}, ?2 the transaction's time
INSERT INTO plan_definition (task, version, stages, created_at)
SELECT w.value ->> 'task', w.value ->> 'version', w.value ->> 'stages', ?2
FROM json_each(?1) AS w
