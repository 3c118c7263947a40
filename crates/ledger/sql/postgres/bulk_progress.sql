-- The owner has worked on all jobs up to an id. Nothing is written where it is the owner no more, nor in a ledger that went back
-- in time: what the same transaction has removed stays then.
-- $1 id, $2 token, $3 the last job, $4 done, $5 skipped, $6 failed, $7 the newest error or NULL
UPDATE bulk
SET behind = $3, page = NULL, done = done + $4, skipped = skipped + $5, failed = failed + $6, error = coalesce($7, error)
WHERE id = $1 AND token = $2 AND finished_at IS NULL
  AND (SELECT is_current FROM ledger_current)
RETURNING {bulk},
          {mark}
