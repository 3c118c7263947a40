-- The next version, if the one that it replaces is the newest.
-- $1 name, $2 value, $3 the version replaced
UPDATE setting
SET version = version + 1, value = $2, updated_at = {now}
WHERE name = $1 AND version = $3
