-- ?1 resource
SELECT resource, owner, fencing_token, acquired_at, renewed_at,
       max((expires_at - (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + 999) / 1000, 0) AS expires_in_ms
FROM lease
WHERE resource = ?1
