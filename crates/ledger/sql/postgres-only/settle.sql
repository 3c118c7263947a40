-- Commits a record of the log after all that the session has read. It is answered when a synchronous standby has that record,
-- and with it all before; without such a standby nothing is written. The mark is read once the record is in the log.
SELECT pg_logical_emit_message(true, 'fencepost', 'settle'::text) IS NOT NULL AS settles,
       {mark}
WHERE current_setting('synchronous_standby_names') <> ''
