-- A bulk operation is over. What matched at its beginning and was not found, when it is done, was skipped.
-- ?1 id, ?2 token, ?3 status, ?4 error or NULL
UPDATE bulk
SET status = ?3, finished_at = {now}, page = NULL, error = coalesce(?4, error),
    skipped = CASE ?3 WHEN 'DONE' THEN max(skipped, matched - done - failed) ELSE skipped END
WHERE id = ?1 AND token = ?2 AND finished_at IS NULL
RETURNING {bulk}
