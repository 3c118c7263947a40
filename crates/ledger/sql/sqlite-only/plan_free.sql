-- Forgets the leases of plans.
-- ?1 JSON array of resources
DELETE FROM lease
WHERE resource IN (SELECT value FROM json_each(?1))
