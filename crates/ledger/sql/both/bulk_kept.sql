-- What was made under an idempotency key.
-- $1 hash of the key
SELECT {bulk}
FROM bulk
WHERE key_hash = $1
