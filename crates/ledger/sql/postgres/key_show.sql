-- $1 scopes, $2 keys
SELECT k.scope, k.key, k.body_hash, k.answer, k.created_at
FROM idempotency_key k
JOIN (SELECT unnest($1::text[]) AS scope, unnest($2::text[]) AS key) AS w ON k.scope = w.scope AND k.key = w.key
