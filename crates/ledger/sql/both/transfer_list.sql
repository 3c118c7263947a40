-- What the nodes of the other live instances can do. The range is there as in instance_list.
-- $1 the caller, $2 limit
SELECT n.instance_id, n.nodes
FROM instance_nodes n
JOIN lease l ON l.resource = 'instance:' || n.instance_id AND l.owner = n.instance_id AND l.expires_at > {now}
WHERE l.resource BETWEEN 'instance:' AND 'instance:~'
  AND n.instance_id <> $1 AND n.nodes IS NOT NULL
ORDER BY n.instance_id
LIMIT $2
