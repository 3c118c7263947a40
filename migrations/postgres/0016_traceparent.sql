-- The span that a job continues, as the W3C's header writes it: 55 characters. NULL for none.
ALTER TABLE job ADD COLUMN traceparent text;
ALTER TABLE job_finished ADD COLUMN traceparent text;

-- Instances of the last release run on. Their connections have prepared statements that read all columns of a job, which
-- PostgreSQL refuses for good from now on (0A000, `cached plan must not change result type`). New connections prepare them
-- anew. Until this transaction ends, its lock on the table keeps such statements waiting, so none of them is refused.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%' AND pid <> pg_backend_pid()
  AND pg_has_role(usesysid, 'USAGE') AND EXISTS (SELECT FROM lease);
