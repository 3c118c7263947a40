-- The pool is not paused any more.
-- $1 pool
DELETE FROM pool_pause WHERE pool = $1
