-- How long the statements of this transaction wait for a lock.
-- $1 the longest wait, with its unit
SELECT set_config('lock_timeout', $1, true)
