-- The mark of this transaction: its number, if it has written, and a place in the log behind something that it wrote.
SELECT ARRAY[pg_current_xact_id_if_assigned()::text::bigint, CASE WHEN current_setting('fencepost.marks', true) = 'on'
             THEN pg_current_wal_insert_lsn() - '0/0' END]::bigint[] AS mark
