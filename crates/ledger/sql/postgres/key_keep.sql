-- $1 scope, $2 key, $3 body hash, $4 answer
INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
VALUES ($1, $2, $3, $4, now())
ON CONFLICT DO NOTHING
