-- The partitions of finished jobs, the database's time in milliseconds, and the server's room for locks: one row at least.
SELECT c.relname::text AS name, (extract(epoch FROM now()) * 1000)::bigint AS now_ms,
       current_setting('max_locks_per_transaction')::bigint AS locks, current_setting('max_connections')::bigint AS connections
FROM (SELECT) AS one
LEFT JOIN pg_inherits i ON i.inhparent = 'job_finished'::regclass
LEFT JOIN pg_class c ON c.oid = i.inhrelid
ORDER BY c.relname
