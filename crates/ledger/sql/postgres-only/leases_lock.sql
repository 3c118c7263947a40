-- Locks the rows of leases, in one order.
-- $1 resources
SELECT resource
FROM lease
WHERE resource = ANY($1)
ORDER BY resource
FOR UPDATE
