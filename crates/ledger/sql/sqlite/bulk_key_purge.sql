-- Bulk operations that are over give their old keys back, and stay.
-- ?1 age in ms, ?2 limit
UPDATE bulk SET key_hash = NULL
WHERE id IN (
    SELECT id FROM bulk
    WHERE key_hash IS NOT NULL AND finished_at IS NOT NULL
      AND created_at < {now} - ?1 * 1000
    ORDER BY created_at
    LIMIT ?2
)
