-- The leases, of those named by token, that are still this owner's. Takes no lock, and waits for none.
-- $1 resources, $2 tokens, $3 owner
SELECT l.resource
FROM lease l
JOIN (SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS fencing_token) AS w
  ON l.resource = w.resource AND l.fencing_token = w.fencing_token
WHERE l.owner = $3
