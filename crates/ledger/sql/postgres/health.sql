-- The settings on which "accepted means durable" rests.
SELECT current_setting('fsync') AS fsync,
       -- What sessions begin with. Those of Fencepost then set it themselves.
       coalesce(
           (
               SELECT lower(split_part(altered, '=', 2))
               FROM pg_db_role_setting s
               CROSS JOIN unnest(s.setconfig) AS altered
               WHERE starts_with(altered, 'synchronous_commit=')
                 AND (s.setdatabase = 0 OR s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
                 AND (s.setrole = 0 OR s.setrole = (SELECT oid FROM pg_roles WHERE rolname = session_user))
               ORDER BY s.setrole <> 0 DESC, s.setdatabase <> 0 DESC
               LIMIT 1
           ),
           -- This session began with what a database or a role had then, and does not know the server's own: a later one tells.
           CASE WHEN current_setting('fencepost.commits_set_by', true) IN ('global', 'database', 'user', 'database user')
                THEN 'on' END,
           (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')
       ) AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes,
       -- A standby that no commit waits for lacks the last commits when it is promoted.
       current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication) AS lags,
       pg_is_in_recovery() AS is_standby
