-- Renews tenants' locks that are still held at exactly these tokens.
-- ?1 JSON array of {resource, token}, ?2 length in ms, ?3 the transaction's time
UPDATE lease
SET renewed_at = ?3, expires_at = ?3 + ?2 * 1000
FROM json_each(?1) AS w
WHERE lease.resource = w.value ->> 'resource' AND lease.fencing_token = w.value ->> 'token'
  AND lease.owner IS NOT NULL
