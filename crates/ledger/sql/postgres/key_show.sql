-- $1 scope, $2 key
SELECT body_hash, answer FROM idempotency_key WHERE scope = $1 AND key = $2
