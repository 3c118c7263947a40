-- Keeps idempotency keys; answers those that were new.
-- $1 scopes, $2 keys, $3 body hashes, $4 answers
INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
SELECT w.scope, w.key, w.body_hash, w.answer, now()
FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[]) AS w (scope, key, body_hash, answer)
ORDER BY w.scope COLLATE "C", w.key COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING scope, key
