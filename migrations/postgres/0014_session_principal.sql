-- Which token opened a session; NULL without tokens. Its open sessions are counted when it opens one more.
ALTER TABLE session ADD COLUMN principal text COLLATE "C";
CREATE INDEX session_open_of ON session (principal) WHERE closed_at IS NULL AND principal IS NOT NULL;

-- Instances of the last release run on. Their connections have prepared statements that read all columns of a session, which
-- PostgreSQL refuses for good from now on (0A000, `cached plan must not change result type`). New connections prepare them
-- anew. Until this transaction ends, its lock on the table keeps such statements waiting, so none of them is refused.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%' AND pid <> pg_backend_pid()
  AND pg_has_role(usesysid, 'USAGE') AND EXISTS (SELECT FROM lease);
