-- The newest first. A line with a mark is there only if the filter asks for it.
-- ?1 principal, ?2 action, ?3 subject, ?4 from then on, in microseconds, ?5 below this id, ?6 limit
SELECT id, at, principal, action, subject, before, after, reason, request_id
FROM audit
WHERE at >= ?4 AND id < ?5
  AND principal = ?1 --? principal
  AND action = ?2 --? action
  AND subject = ?3 --? subject
ORDER BY id DESC
LIMIT ?6
