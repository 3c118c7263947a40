-- Changes plans that are still at the version before.
-- ?1 JSON array of {id, version, status, needs_owner, is_over, document}, ?2 the transaction's time
UPDATE plan
SET version = w.value ->> 'version', status = w.value ->> 'status', needs_owner = w.value ->> 'needs_owner',
    finished_at = iif(w.value ->> 'is_over', coalesce(finished_at, ?2), NULL), document = w.value ->> 'document'
FROM json_each(?1) AS w
WHERE plan.id = w.value ->> 'id' AND plan.version = (w.value ->> 'version') - 1
