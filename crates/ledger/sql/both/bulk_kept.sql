-- What was made under an idempotency key.
-- $1 hash of the key
SELECT id, principal, action, filter, before, rate, status, matched, done, skipped, failed, error, created_at, finished_at, owner, token, page, body_hash, behind
FROM bulk
WHERE key_hash = $1
