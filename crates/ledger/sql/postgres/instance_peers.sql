-- The incarnations that live or ended a short while ago, with the leases by which they show it. All times
-- are as of the moment when the row is read. A lease that was acquired before the clock stepped back is as old as can be.
-- $1 how long ago, in ms; $2 limit
SELECT i.instance_id, i.url, l.resource, l.owner, l.fencing_token, l.acquired_at, l.renewed_at,
       ceil(greatest(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000, 0))::bigint AS expires_in_ms,
       CASE WHEN l.acquired_at > clock_timestamp() THEN 9223372036854775807
            ELSE floor(greatest(extract(epoch FROM clock_timestamp() - l.acquired_at) * 1000, 0))::bigint END AS age_ms
FROM lease l
JOIN instance i ON l.resource = 'instance:' || i.instance_id
WHERE l.resource BETWEEN 'instance:' AND 'instance:~'
  AND l.expires_at > now() - $1 * interval '1 millisecond'
ORDER BY l.expires_at DESC, l.resource
LIMIT $2
