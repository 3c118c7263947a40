-- The claims that still hold, without a lock: asked of the rows that fence_lock passed over.
-- $1 resources, $2 tokens, $3 owners
SELECT l.resource
FROM lease l
JOIN unnest($1::text[], $2::bigint[], $3::text[]) AS w (resource, fencing_token, owner)
  ON l.resource = w.resource AND l.fencing_token = w.fencing_token
WHERE l.owner = w.owner AND (SELECT is_current FROM ledger_current)
