-- The next nonce that was confirmed last after a recovery, so that the confirmation may be repeated; NULL if none was.
ALTER TABLE signer ADD COLUMN confirmed_nonce INTEGER;
