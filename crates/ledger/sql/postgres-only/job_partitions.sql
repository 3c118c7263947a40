-- The partitions of finished jobs, and the database's time in milliseconds: one row at least.
SELECT c.relname::text AS name, (extract(epoch FROM now()) * 1000)::bigint AS now_ms
FROM (SELECT) AS one
LEFT JOIN pg_inherits i ON i.inhparent = 'job_finished'::regclass
LEFT JOIN pg_class c ON c.oid = i.inhrelid
ORDER BY c.relname
