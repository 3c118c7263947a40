-- Deletes the oldest keys from a moment on; answers when each was kept.
-- ?1 age in ms, ?2 limit, ?3 the moment
DELETE FROM idempotency_key
WHERE (scope, key) IN (
    SELECT scope, key FROM idempotency_key
    WHERE created_at >= ?3 AND created_at < {now} - ?1 * 1000
    ORDER BY created_at
    LIMIT ?2
)
RETURNING created_at
