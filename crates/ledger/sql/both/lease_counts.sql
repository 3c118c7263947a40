-- Some of the leases, by their resources, counted by owner (NULL for those that were released): how many there are, how many of
-- them are live, the owner's own `instance:` lease left out; and the last one's resource.
-- $1 behind this resource, $2 how many
WITH piece AS (
    SELECT resource, owner, expires_at FROM lease WHERE resource > $1 ORDER BY resource LIMIT $2
)
SELECT owner,
       count(*) AS found,
       count(*) FILTER (WHERE expires_at > {now} AND resource <> 'instance:' || owner) AS live,
       (SELECT resource FROM piece ORDER BY resource DESC LIMIT 1) AS last
FROM piece
GROUP BY owner
