-- $1 from this resource, $2 to this resource, $3 owner or NULL, $4 limit
SELECT resource, owner, fencing_token, acquired_at, renewed_at,
       ceil(greatest(extract(epoch FROM expires_at - clock_timestamp()) * 1000, 0))::bigint AS expires_in_ms
FROM lease
WHERE resource BETWEEN $1 AND $2
  AND ($3::text IS NULL OR owner = $3)
ORDER BY resource
LIMIT $4
