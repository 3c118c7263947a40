-- $1 plan
SELECT id, status, version, document, created_at, finished_at
FROM plan
WHERE id = $1
