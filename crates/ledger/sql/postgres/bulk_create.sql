-- A new bulk operation, unless its key was used or so many are under way already.
-- $1 id, $2 principal, $3 action, $4 filter, $5 before, $6 rate, $7 matched, $8 owner, $9 hash of the key or NULL,
-- $10 hash of the request, $11 the most under way, $12 the most of one token
INSERT INTO bulk (id, principal, action, filter, before, rate, status, matched, done, skipped, failed, created_at, owner, token,
                  key_hash, body_hash)
SELECT $1, $2, $3, $4, $5, $6, 'RUNNING', $7, 0, 0, 0, now(), $8, 1, $9, $10
WHERE (SELECT count(*) FROM bulk WHERE finished_at IS NULL) < $11
  AND ($2 = '' OR (SELECT count(*) FROM bulk WHERE finished_at IS NULL AND principal = $2) < $12)
ON CONFLICT DO NOTHING
RETURNING {bulk}
