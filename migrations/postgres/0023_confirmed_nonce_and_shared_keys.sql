-- The next nonce that was confirmed last after a recovery, so that the confirmation may be repeated; NULL if none was.
ALTER TABLE signer ADD COLUMN confirmed_nonce bigint;
-- Whether an idempotency key is one key for all callers. Instances of the last release give each caller its own.
ALTER TABLE signer ADD COLUMN shared_keys boolean NOT NULL DEFAULT false;

-- As in 0014: statements that connections of the last release have prepared read all columns.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'fencepost%' AND pid <> pg_backend_pid()
  AND pg_has_role(usesysid, 'USAGE') AND EXISTS (SELECT FROM lease);
