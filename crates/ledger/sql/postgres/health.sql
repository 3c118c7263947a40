-- The settings on which "accepted means durable" rests.
SELECT current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes,
       -- A standby that no commit waits for lacks the last commits when it is promoted.
       current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication) AS lags,
       pg_is_in_recovery() AS is_standby
