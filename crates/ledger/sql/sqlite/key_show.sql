-- ?1 JSON array of {scope, key}
SELECT k.scope, k.key, k.body_hash, k.answer, k.created_at
FROM json_each(?1) AS w
JOIN idempotency_key k ON k.scope = w.value ->> 'scope' AND k.key = w.value ->> 'key'
