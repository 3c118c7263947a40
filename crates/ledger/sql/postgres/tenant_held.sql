-- Who holds a tenant's lock, and at which token; nothing where nobody does.
-- $1 resource
SELECT owner, fencing_token
FROM lease
WHERE resource = $1 AND owner IS NOT NULL AND expires_at > now()
