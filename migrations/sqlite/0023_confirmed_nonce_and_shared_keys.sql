-- The next nonce that was confirmed last after a recovery, so that the confirmation may be repeated; NULL if none was.
ALTER TABLE signer ADD COLUMN confirmed_nonce INTEGER;
-- Whether an idempotency key is one key for all callers. Instances of the last release give each caller its own.
ALTER TABLE signer ADD COLUMN shared_keys INTEGER NOT NULL DEFAULT 0;
