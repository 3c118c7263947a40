-- The newest first.
-- $1 principal or NULL, $2 action or NULL, $3 subject or NULL, $4 from then on, in microseconds, $5 below this id, $6 limit
SELECT id, at, principal, action, subject, before, after, reason, request_id
FROM audit
WHERE (CAST($1 AS text) IS NULL OR principal = $1) AND (CAST($2 AS text) IS NULL OR action = $2) AND (CAST($3 AS text) IS NULL OR subject = $3) AND at >= to_timestamp($4 / 1000000.0)
  AND id < $5
ORDER BY id DESC
LIMIT $6
