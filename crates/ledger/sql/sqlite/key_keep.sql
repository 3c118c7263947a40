-- Keeps idempotency keys; answers those that were new.
-- ?1 JSON array of {scope, key, body_hash (hexadecimal), answer}, ?2 the transaction's time
INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
SELECT w.value ->> 'scope', w.value ->> 'key', unhex(w.value ->> 'body_hash'), w.value ->> 'answer', ?2
FROM json_each(?1) AS w
WHERE TRUE
ON CONFLICT DO NOTHING
RETURNING scope, key
