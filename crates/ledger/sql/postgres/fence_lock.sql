-- The fence. Locks the lease row of every claim, at exactly its token, for as long as the
-- transaction lasts: a takeover waits for it, a renewal does not. Rows that a takeover has locked are
-- passed over; fence_holds tells them from lost ones. In a ledger that went back in time nothing holds.
-- The mark is read once the locks are in the log.
-- $1 resources, $2 tokens, $3 owners
WITH locked AS MATERIALIZED (
SELECT l.resource
FROM lease l
JOIN (SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS fencing_token, unnest($3::text[]) AS owner) AS w
  ON l.resource = w.resource AND l.fencing_token = w.fencing_token
WHERE l.owner = w.owner AND (SELECT is_current FROM ledger_current)
ORDER BY l.resource
FOR KEY SHARE OF l SKIP LOCKED
)
SELECT resource, (extract(epoch FROM now()) * 1000000)::bigint AS at,
       {mark}
FROM locked
