-- ?1 age in ms, ?2 limit
DELETE FROM audit
WHERE id IN (SELECT id FROM audit
             WHERE at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?1 * 1000 ORDER BY at LIMIT ?2)
