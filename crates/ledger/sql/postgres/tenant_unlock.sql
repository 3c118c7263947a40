-- Gives tenants' locks back, those that are still held at exactly these tokens.
-- $1 resources, $2 tokens, $3 owners
UPDATE lease l
SET owner = NULL, expires_at = now()
FROM (SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS token, unnest($3::text[]) AS owner) AS w
WHERE l.resource = w.resource AND l.fencing_token = w.token AND l.owner = w.owner
