-- ?1 age in ms, ?2 limit
DELETE FROM audit
WHERE id IN (SELECT id FROM audit
             WHERE at < {now} - ?1 * 1000 ORDER BY at LIMIT ?2)
