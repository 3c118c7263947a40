-- The mark of this transaction: the server's timeline, the transaction's number, if it has written, and a place in the log behind
-- something that it wrote.
SELECT ARRAY[nullif(current_setting('fencepost.timeline', true), '')::bigint, pg_current_xact_id_if_assigned()::text::bigint,
             CASE WHEN current_setting('fencepost.timeline', true) <> ''
                  THEN pg_current_wal_insert_lsn() - '0/0' END]::bigint[] AS mark
