-- $1 scopes, $2 keys
SELECT k.scope, k.key, k.body_hash, k.answer, k.created_at
FROM idempotency_key k
JOIN unnest($1::text[], $2::text[]) AS w (scope, key) ON k.scope = w.scope AND k.key = w.key
