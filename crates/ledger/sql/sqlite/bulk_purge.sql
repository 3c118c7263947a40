-- The oldest come first: of many that are to go, the next ones are found at once.
-- ?1 age in ms, ?2 limit
DELETE FROM bulk
WHERE id IN (SELECT id FROM bulk
             WHERE finished_at < {now} - ?1 * 1000 ORDER BY id LIMIT ?2)
