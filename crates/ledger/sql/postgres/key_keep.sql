-- Keeps idempotency keys; answers those that were new.
-- $1 scopes, $2 keys, $3 body hashes, $4 answers
INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
SELECT w.scope, w.key, w.body_hash, w.answer, now()
FROM (
    SELECT unnest($1::text[]) AS scope, unnest($2::text[]) AS key, unnest($3::bytea[]) AS body_hash,
           unnest($4::text[]) AS answer
) AS w
ORDER BY w.scope COLLATE "C", w.key COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING scope, key
