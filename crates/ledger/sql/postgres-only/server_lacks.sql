-- Whether this server lacks a transaction that was answered as committed. A number that it has not come to yet has no status.
-- $1 the transactions' numbers
SELECT EXISTS (
    SELECT
    FROM unnest($1::bigint[]) AS answered
    WHERE CASE WHEN answered::text::xid8 < pg_snapshot_xmax(pg_current_snapshot())
               THEN pg_xact_status(answered::text::xid8)
          END IS DISTINCT FROM 'committed'
) AS lacks
