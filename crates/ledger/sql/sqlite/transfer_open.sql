-- Of these instances those to which jobs can be transferred: they live, and say what their nodes can do. Their own rows say
-- that they are to look.
-- ?1 JSON array of instances
UPDATE instance_nodes
SET given = given + 1
WHERE instance_id IN (SELECT value FROM json_each(?1)) AND nodes IS NOT NULL
  AND EXISTS (
      SELECT 1 FROM lease l
      WHERE l.resource = 'instance:' || instance_id AND l.owner = instance_id
        AND l.expires_at > {now}
  )
RETURNING instance_id
