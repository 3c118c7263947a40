-- Deletes the oldest keys from a moment on; answers when each was kept. What was deleted stays in the index until a
-- vacuum, and a scan from the beginning passes over all of it.
-- $1 age in ms, $2 limit, $3 the moment
DELETE FROM idempotency_key
WHERE (scope, key) IN (
    SELECT scope, key FROM idempotency_key
    WHERE created_at >= $3 AND created_at < now() - $1 * interval '1 millisecond'
    ORDER BY created_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
RETURNING created_at
