-- ?1 resource
SELECT resource, owner, fencing_token, acquired_at, renewed_at,
       max((expires_at - ({now}) + 999) / 1000, 0) AS expires_in_ms
FROM lease
WHERE resource = ?1
