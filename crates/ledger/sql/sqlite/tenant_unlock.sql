-- Gives tenants' locks back, those that are still held at exactly these tokens.
-- ?1 JSON array of {resource, token, owner}, ?2 the transaction's time
UPDATE lease
SET owner = NULL, expires_at = ?2
FROM json_each(?1) AS w
WHERE lease.resource = w.value ->> 'resource' AND lease.fencing_token = w.value ->> 'token'
  AND lease.owner = w.value ->> 'owner'
