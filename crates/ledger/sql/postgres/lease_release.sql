-- Ends the leases named by owner and token now, and no others. The rows stay: their tokens must never start over. Rows are locked
-- in one order, and locked ones are passed over.
-- $1 resources, $2 tokens, $3 owner
WITH mine AS (
    SELECT l.resource
    FROM lease l
    JOIN (SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS fencing_token) AS w
      ON l.resource = w.resource AND l.fencing_token = w.fencing_token
    WHERE l.owner = $3
    ORDER BY l.resource
    FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE lease l
SET owner = NULL, expires_at = clock_timestamp()
FROM mine
WHERE l.resource = mine.resource
RETURNING l.resource
