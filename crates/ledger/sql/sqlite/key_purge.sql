-- ?1 age in ms, ?2 limit
DELETE FROM idempotency_key
WHERE (scope, key) IN (
    SELECT scope, key FROM idempotency_key
    WHERE created_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?1 * 1000
    ORDER BY created_at
    LIMIT ?2
)
