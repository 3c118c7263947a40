-- The incarnations that live or ended a short while ago, with the leases by which they show it. All times
-- are as of the moment when the row is read. A lease that was acquired before the clock stepped back is as old as can be.
-- ?1 how long ago, in ms; ?2 limit
SELECT i.instance_id, i.url, l.resource, l.owner, l.fencing_token, l.acquired_at, l.renewed_at,
       max((l.expires_at - ({now}) + 999) / 1000, 0) AS expires_in_ms,
       CASE WHEN l.acquired_at > {now} THEN 9223372036854775807
            ELSE (({now}) - l.acquired_at) / 1000 END AS age_ms
FROM lease l
JOIN instance i ON l.resource = 'instance:' || i.instance_id
WHERE l.resource BETWEEN 'instance:' AND 'instance:~'
  AND l.expires_at > {now} - ?1 * 1000
ORDER BY l.expires_at DESC, l.resource
LIMIT ?2
