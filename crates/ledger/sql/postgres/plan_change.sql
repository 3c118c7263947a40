-- Changes a plan that is still at the version before.
-- $1 id, $2 the new version, $3 status, $4 whether it needs an owner, $5 whether it is over, $6 document
UPDATE plan
SET version = $2, status = $3, needs_owner = $4,
    finished_at = CASE WHEN $5 THEN coalesce(finished_at, now()) END, document = $6
WHERE id = $1 AND version = $2 - 1
