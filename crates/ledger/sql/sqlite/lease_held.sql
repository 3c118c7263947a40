-- The leases, of those named by token, that are still this owner's.
-- ?1 JSON array of {resource, token}, ?2 owner
SELECT lease.resource
FROM json_each(?1) AS w
JOIN lease ON lease.resource = w.value ->> 'resource' AND lease.fencing_token = w.value ->> 'token'
WHERE lease.owner = ?2
