-- Changes tasks that are still at the version before.
-- ?1 JSON array of {id, version, status, run, definition, document}, ?2 the transaction's time
UPDATE plan_task
SET version = w.value ->> 'version', status = w.value ->> 'status', run = w.value ->> 'run',
    definition = w.value ->> 'definition', document = w.value ->> 'document', updated_at = ?2
FROM json_each(?1) AS w
WHERE plan_task.id = w.value ->> 'id' AND plan_task.version = (w.value ->> 'version') - 1
