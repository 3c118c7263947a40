-- Locks the rows of unfinished jobs, in one order, for as long as the transaction lasts; answers those that are
-- there. One row at least, for the transaction's time.
-- $1 ids
WITH locked AS MATERIALIZED (
    SELECT id FROM job WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
)
SELECT l.id, (extract(epoch FROM now()) * 1000000)::bigint AS at,
       {mark}
FROM (SELECT) AS one
LEFT JOIN locked l ON TRUE
