-- The mark of the transaction, as a column: the server's timeline, if the session knows it, the transaction's number, if it has
-- written, and a place in the log behind what it has written by then.
ARRAY[nullif(current_setting('fencepost.timeline', true), '')::bigint, pg_current_xact_id_if_assigned()::text::bigint,
      CASE WHEN current_setting('fencepost.timeline', true) <> ''
           THEN pg_current_wal_insert_lsn() - '0/0' END]::bigint[] AS mark
