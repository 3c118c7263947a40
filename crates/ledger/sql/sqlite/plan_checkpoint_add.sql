-- New checkpoints.
-- ?1 JSON array of {task, version, run, completed, context}, ?2 the transaction's time
INSERT INTO plan_checkpoint (task, version, run, completed, context, saved_at)
SELECT w.value ->> 'task', w.value ->> 'version', w.value ->> 'run', w.value ->> 'completed', w.value ->> 'context', ?2
FROM json_each(?1) AS w
