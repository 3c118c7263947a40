-- The next version, if the one that it replaces is the newest.
-- ?1 name, ?2 value, ?3 the version replaced
UPDATE setting
SET version = version + 1, value = ?2, updated_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
WHERE name = ?1 AND version = ?3
