-- Gives tenants' locks back, those that are still held at exactly these tokens.
-- $1 resources, $2 tokens, $3 owners
UPDATE lease l
SET owner = NULL, expires_at = now()
FROM unnest($1::text[], $2::bigint[], $3::text[]) AS w (resource, token, owner)
WHERE l.resource = w.resource AND l.fencing_token = w.token AND l.owner = w.owner
