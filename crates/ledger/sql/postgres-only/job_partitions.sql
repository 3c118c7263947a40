-- The partitions of finished jobs, and the database's time in milliseconds.
SELECT array(
           SELECT c.relname::text
           FROM pg_inherits i
           JOIN pg_class c ON c.oid = i.inhrelid
           WHERE i.inhparent = 'job_finished'::regclass
           ORDER BY c.relname
       ) AS names,
       (extract(epoch FROM now()) * 1000)::bigint AS now_ms
