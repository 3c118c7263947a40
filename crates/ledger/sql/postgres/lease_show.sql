-- $1 resource
SELECT resource, owner, fencing_token, acquired_at, renewed_at,
       ceil(greatest(extract(epoch FROM expires_at - clock_timestamp()) * 1000, 0))::bigint AS expires_in_ms
FROM lease
WHERE resource = $1
