-- ?1 scope, ?2 key, ?3 body hash, ?4 answer, ?5 the transaction's time
INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO NOTHING
