-- Takes tenants' locks that are free, ran out, or are the task's own, each one token on, a first one from the floor; answers
-- those taken. Rows are
-- locked in one order.
-- $1 resources, $2 owners, $3 length in ms
INSERT INTO lease AS l (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
SELECT w.resource, w.owner, (SELECT token_floor FROM ledger_recovery) + 1, now(), now(), now() + $3 * interval '1 millisecond'
FROM (SELECT unnest($1::text[]) AS resource, unnest($2::text[]) AS owner) AS w
ORDER BY w.resource COLLATE "C"
ON CONFLICT (resource)
DO UPDATE SET owner = excluded.owner, fencing_token = l.fencing_token + 1, acquired_at = excluded.acquired_at,
              renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
WHERE l.owner IS NULL OR l.owner = excluded.owner OR l.expires_at <= clock_timestamp()
RETURNING resource, fencing_token
