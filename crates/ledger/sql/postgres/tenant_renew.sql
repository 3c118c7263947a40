-- Renews tenants' locks that are still held at exactly these tokens; the fence has locked their rows.
-- $1 resources, $2 tokens, $3 length in ms
UPDATE lease l
SET renewed_at = now(), expires_at = now() + $3 * interval '1 millisecond'
FROM (SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS token) AS w
WHERE l.resource = w.resource AND l.fencing_token = w.token AND l.owner IS NOT NULL
