-- $1 prefix of the resource ('' for all), $2 owner or NULL, $3 after this resource ('' for the start), $4 limit
SELECT resource, owner, fencing_token,
       (extract(epoch FROM acquired_at) * 1000000)::bigint AS acquired_at,
       (extract(epoch FROM renewed_at) * 1000000)::bigint AS renewed_at,
       ceil(greatest(extract(epoch FROM expires_at - clock_timestamp()) * 1000, 0))::bigint AS expires_in_ms
FROM lease
WHERE resource > greatest($1 COLLATE "C", $3)
  AND starts_with(resource, $1)
  AND ($2::text IS NULL OR owner = $2)
ORDER BY resource
LIMIT $4
