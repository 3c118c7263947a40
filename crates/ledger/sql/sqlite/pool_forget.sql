-- Deletes the pauses of pools that have ended by themselves.
-- ?1 the transaction's time
DELETE FROM pool_pause
WHERE until <= ?1
