-- When finished jobs of the session were forgotten last (deleted, or purged): it counts as used since. NULL if none was.
ALTER TABLE session ADD COLUMN forgotten_at timestamptz;

-- As in 0014: statements that connections of the last release have prepared read all columns.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%' AND pid <> pg_backend_pid()
  AND pg_has_role(usesysid, 'USAGE') AND EXISTS (SELECT FROM lease);
