-- The owner leaves a bulk operation to whichever instance takes it next. Its owner is then one that never lives, and the token
-- rises: what the owner sent before finds no row.
-- $1 id, $2 token
UPDATE bulk
SET owner = 'nobody', token = token + 1
WHERE id = $1 AND token = $2 AND finished_at IS NULL
RETURNING {bulk}
