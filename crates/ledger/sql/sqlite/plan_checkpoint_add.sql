-- New checkpoints.
-- ?1 JSON array of {task, version, run, definition, completed, context}, ?2 the transaction's time
INSERT INTO plan_checkpoint (task, version, run, definition, completed, context, saved_at)
SELECT w.value ->> 'task', w.value ->> 'version', w.value ->> 'run', w.value ->> 'definition', w.value ->> 'completed',
       w.value ->> 'context', ?2
FROM json_each(?1) AS w
