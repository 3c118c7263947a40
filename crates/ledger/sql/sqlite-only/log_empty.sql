-- Writes all of the log into the file, and empties the log.
PRAGMA wal_checkpoint(TRUNCATE)
