-- Who holds a tenant's lock, and at which token; nothing where nobody does.
-- ?1 resource, ?2 the transaction's time
SELECT owner, fencing_token
FROM lease
WHERE resource = ?1 AND owner IS NOT NULL AND expires_at > ?2
