-- Which server it is. A standby names no timeline. `ended` is where a standby that became this primary stopped to replay.
SELECT system_identifier::text AS system,
       CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END AS timeline,
       CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint END AS written,
       pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint AS ended,
       current_setting('synchronous_standby_names') <> ''
           AND current_setting('synchronous_commit') IN ('on', 'remote_apply') AS is_synchronous
FROM pg_control_system()
