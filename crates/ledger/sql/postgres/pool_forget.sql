-- Deletes the pauses of pools that have ended by themselves.
DELETE FROM pool_pause
WHERE until <= now()
