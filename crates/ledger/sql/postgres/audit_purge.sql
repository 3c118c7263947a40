-- $1 age in ms, $2 limit
DELETE FROM audit
WHERE id IN (SELECT id FROM audit WHERE at < now() - $1 * interval '1 millisecond' ORDER BY at LIMIT $2)
