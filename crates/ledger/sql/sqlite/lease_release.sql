-- Ends a tenure now. The row stays: its token must never start over.
-- ?1 resource, ?2 owner, ?3 token
UPDATE lease
SET owner = NULL, expires_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
WHERE resource = ?1 AND owner = ?2 AND fencing_token = ?3
