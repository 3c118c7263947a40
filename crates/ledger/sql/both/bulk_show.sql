-- $1 id
SELECT id, principal, action, filter, before, rate, status, matched, done, skipped, failed, error, created_at, finished_at, owner, token, page, body_hash, behind
FROM bulk
WHERE id = $1
