-- The newest first.
-- ?1 principal or NULL, ?2 action or NULL, ?3 subject or NULL, ?4 from then on, in microseconds, ?5 below this id, ?6 limit
SELECT id, at, principal, action, subject, before, after, reason, request_id
FROM audit
WHERE (?1 IS NULL OR principal = ?1) AND (?2 IS NULL OR action = ?2) AND (?3 IS NULL OR subject = ?3) AND at >= ?4
  AND id < ?5
ORDER BY id DESC
LIMIT ?6
