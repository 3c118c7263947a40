-- ?1 from this resource, ?2 to this resource, ?3 owner or NULL, ?4 limit
SELECT resource, owner, fencing_token, acquired_at, renewed_at,
       max((expires_at - ({now}) + 999) / 1000, 0) AS expires_in_ms
FROM lease
WHERE resource BETWEEN ?1 AND ?2
  AND (?3 IS NULL OR owner = ?3)
ORDER BY resource
LIMIT ?4
