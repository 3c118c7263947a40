-- Whether this server lacks a transaction that was answered as committed: it has not come to its number yet, or did not commit
-- it. Of a number that is very old it does not say what became of it.
-- $1 the transactions' numbers
SELECT EXISTS (
    SELECT
    FROM unnest($1::bigint[]) AS answered
    WHERE CASE WHEN answered::text::xid8 < pg_snapshot_xmax(pg_current_snapshot())
               THEN pg_xact_status(answered::text::xid8) <> 'committed'
               ELSE true END
) AS lacks
