-- The settings on which "accepted means durable" rests.
SELECT current_setting('fsync') AS fsync,
       -- The default of new sessions that the role or the database sets, else NULL. Fencepost's sessions override it.
       (
           SELECT lower(split_part(altered, '=', 2))
           FROM pg_db_role_setting s
           CROSS JOIN unnest(s.setconfig) AS altered
           WHERE starts_with(altered, 'synchronous_commit=')
             AND (s.setdatabase = 0 OR s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
             AND (s.setrole = 0 OR s.setrole = (SELECT oid FROM pg_roles WHERE rolname = session_user))
           ORDER BY s.setrole <> 0 DESC, s.setdatabase <> 0 DESC
           LIMIT 1
       ) AS altered_commit,
       -- The server's own value. It is NULL in a session that began with such a default, or in which another client had set one.
       (
           SELECT reset_val
           FROM pg_settings
           WHERE name = 'synchronous_commit'
             AND current_setting('fencepost.commits_set_by', true)
                 NOT IN ('global', 'database', 'user', 'database user', 'session')
       ) AS servers_commit,
       current_setting('full_page_writes') AS full_page_writes,
       -- A standby that no commit waits for lacks the last commits when it is promoted. What copies the log without replaying
       -- it, as a backup does, or is no copy of all, is not promoted. A role that may not read all of the view
       -- (pg_read_all_stats) sees neither the state nor what is replayed: where none is synchronous, each is one to it that
       -- reads by no logical slot, and where some are, it does not see which are not.
       EXISTS (
           SELECT
           FROM pg_stat_replication r
           WHERE (current_setting('synchronous_standby_names') = '' AND r.state IS NULL
                  OR r.sync_state = 'async' AND r.replay_lsn IS NOT NULL)
             AND r.pid NOT IN (
                 SELECT s.active_pid FROM pg_replication_slots s
                 WHERE s.slot_type = 'logical' AND s.active_pid IS NOT NULL
             )
       ) AS lags,
       pg_is_in_recovery() AS is_standby
