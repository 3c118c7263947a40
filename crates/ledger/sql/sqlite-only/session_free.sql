-- Forgets the leases of sessions that are forgotten: SQLite has no statement for both.
-- ?1 JSON array of sessions
DELETE FROM lease WHERE resource IN (SELECT 'session:' || value FROM json_each(?1))
