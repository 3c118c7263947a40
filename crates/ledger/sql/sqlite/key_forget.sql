-- Takes keys back in the transaction that kept them: another key of their batch was taken.
-- ?1 JSON array of {scope, key}
DELETE FROM idempotency_key
WHERE (scope, key) IN (SELECT w.value ->> 'scope', w.value ->> 'key' FROM json_each(?1) AS w)
