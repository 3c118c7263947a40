-- Ends the leases named by owner and token now, and no others. The rows stay: their tokens must never start over.
-- ?1 JSON array of {resource, token}, ?2 owner
UPDATE lease
SET owner = NULL, expires_at = {now}
FROM json_each(?1) AS w
WHERE lease.resource = w.value ->> 'resource'
  AND lease.fencing_token = w.value ->> 'token'
  AND lease.owner = ?2
RETURNING lease.resource
