-- Plans, newest first. A line with a mark is there only if the filter asks for it.
-- $1 before this id, $2 status, $3 limit, $4 tenant
SELECT id, status, version, document, created_at, finished_at
FROM plan
WHERE id < $1
  AND status = $2 --? status
  AND id IN (SELECT t.plan FROM plan_task t WHERE t.tenant = $4) --? tenant
ORDER BY id DESC
LIMIT $3
