-- The pools that are paused now.
SELECT pool, reason, principal, since, until
FROM pool_pause
WHERE until IS NULL OR until > {now}
ORDER BY pool
