-- Which bus an instance uses; NULL where it has not said so. Instances on different ones cannot give each other jobs.
ALTER TABLE instance ADD COLUMN bus text;

-- As in 0014: statements that connections of the last release have prepared read all columns.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%' AND pid <> pg_backend_pid()
  AND pg_has_role(usesysid, 'USAGE') AND EXISTS (SELECT FROM lease);
