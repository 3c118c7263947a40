-- The claims that still hold, without a lock: asked of the rows that fence_lock passed over.
-- $1 resources, $2 tokens, $3 owners
SELECT l.resource
FROM lease l
JOIN (SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS fencing_token, unnest($3::text[]) AS owner) AS w
  ON l.resource = w.resource AND l.fencing_token = w.fencing_token
WHERE l.owner = w.owner AND (SELECT is_current FROM ledger_current)
