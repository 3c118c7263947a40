-- Lengthens the leases named by owner and token, and no others: a lease that was released or taken has lost its
-- owner or its token. Rows are locked in one order, and locked ones are passed over.
-- $1 resources, $2 tokens, $3 lengths in ms, $4 owner
WITH mine AS (
    SELECT l.resource, w.lease_ms
    FROM lease l
    JOIN (
        SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS fencing_token, unnest($3::bigint[]) AS lease_ms
    ) AS w
      ON l.resource = w.resource AND l.fencing_token = w.fencing_token
    WHERE l.owner = $4
    ORDER BY l.resource
    FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE lease l
SET renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + mine.lease_ms * interval '1 millisecond'
FROM mine
WHERE l.resource = mine.resource
RETURNING l.resource
