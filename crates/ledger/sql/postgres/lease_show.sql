-- $1 resource
SELECT resource, owner, fencing_token,
       (extract(epoch FROM acquired_at) * 1000000)::bigint AS acquired_at,
       (extract(epoch FROM renewed_at) * 1000000)::bigint AS renewed_at,
       ceil(greatest(extract(epoch FROM expires_at - clock_timestamp()) * 1000, 0))::bigint AS expires_in_ms
FROM lease
WHERE resource = $1
