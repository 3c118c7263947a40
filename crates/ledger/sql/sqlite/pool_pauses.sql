-- The pools that are paused now.
SELECT pool, reason, principal, since, until
FROM pool_pause
WHERE until IS NULL OR until > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
ORDER BY pool
