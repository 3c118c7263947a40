-- Forgets the leases of incarnations that ended long ago and are written down no more.
-- $1 age in ms, $2 limit
DELETE FROM lease
WHERE resource IN (
    SELECT l.resource FROM lease l
    WHERE l.resource > 'instance:' AND l.resource < 'instance;'
      AND l.expires_at < now() - $1 * interval '1 millisecond'
      AND NOT EXISTS (SELECT FROM instance i WHERE 'instance:' || i.instance_id = l.resource)
      -- One whose jobs are unfinished stays: its token must not start over. Its lanes' names continue its own with '#',
      -- which comes before '$'.
      AND NOT EXISTS (SELECT FROM job j WHERE j.lane >= l.resource AND j.lane < l.resource || '$' AND j.node IS NOT NULL)
      AND NOT EXISTS (SELECT FROM job j WHERE j.lane >= l.resource AND j.lane < l.resource || '$' AND j.node IS NULL AND j.due_at IS NULL)
      AND NOT EXISTS (SELECT FROM job j WHERE j.lane >= l.resource AND j.lane < l.resource || '$' AND j.node IS NULL AND j.due_at IS NOT NULL)
    ORDER BY l.resource
    LIMIT $2
)
AND resource > 'instance:' AND resource < 'instance;'
-- Asked once more of each row as it is when it is deleted: somebody may have taken it meanwhile.
AND expires_at < now() - $1 * interval '1 millisecond'
