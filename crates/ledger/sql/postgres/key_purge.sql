-- $1 age in ms, $2 limit
DELETE FROM idempotency_key
WHERE (scope, key) IN (
    SELECT scope, key FROM idempotency_key
    WHERE created_at < now() - $1 * interval '1 millisecond'
    ORDER BY created_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
