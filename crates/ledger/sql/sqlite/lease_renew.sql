-- Lengthens the leases named by owner and token, and no others: a lease that was released or taken has lost its
-- owner or its token.
-- ?1 JSON array of {resource, token, lease_ms}, ?2 owner
UPDATE lease
SET renewed_at = {now},
    expires_at = {now} + (w.value ->> 'lease_ms') * 1000
FROM json_each(?1) AS w
WHERE lease.resource = w.value ->> 'resource'
  AND lease.fencing_token = w.value ->> 'token'
  AND lease.owner = ?2
RETURNING lease.resource
