-- ?1 prefix of the resource ('' for all), ?2 owner or NULL, ?3 after this resource ('' for the start), ?4 limit
SELECT resource, owner, fencing_token, acquired_at, renewed_at,
       max((expires_at - (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + 999) / 1000, 0) AS expires_in_ms
FROM lease
WHERE resource > max(?1, ?3)
  AND substr(resource, 1, length(?1)) = ?1
  AND (?2 IS NULL OR owner = ?2)
ORDER BY resource
LIMIT ?4
