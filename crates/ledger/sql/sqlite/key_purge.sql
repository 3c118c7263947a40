-- ?1 age in ms, ?2 limit
DELETE FROM idempotency_key
WHERE (scope, key) IN (
    SELECT scope, key FROM idempotency_key
    WHERE created_at < {now} - ?1 * 1000
    ORDER BY created_at
    LIMIT ?2
)
