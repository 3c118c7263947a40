-- The pool is not paused any more. Answers the pause, and whether it had not ended by itself.
-- $1 pool
DELETE FROM pool_pause
WHERE pool = $1
RETURNING pool, reason, principal, since, until, (until IS NULL OR until > {now}) AS is_in_force
