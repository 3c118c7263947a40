-- A bulk operation is over. In a ledger that went back in time none ends: a recovery ends them all.
-- $1 id, $2 token, $3 status, $4 error or NULL
UPDATE bulk
SET status = $3, finished_at = now(), page = NULL, error = coalesce($4, error)
WHERE id = $1 AND token = $2 AND finished_at IS NULL
  AND (SELECT is_current FROM ledger_current)
RETURNING {bulk}
