-- Forgets the leases of incarnations that ended long ago and are written down no more.
-- ?1 age in ms, ?2 limit
DELETE FROM lease
WHERE resource IN (
    SELECT l.resource FROM lease l
    WHERE l.resource > 'instance:' AND l.resource < 'instance;'
      AND l.expires_at < {now} - ?1 * 1000
      AND NOT EXISTS (SELECT 1 FROM instance i WHERE i.instance_id = substr(l.resource, 10))
      -- One whose jobs are unfinished stays: its token must not start over. Its lanes' names continue its own with '#',
      -- which comes before '$'.
      AND NOT EXISTS (SELECT 1 FROM job j WHERE j.lane >= l.resource AND j.lane < l.resource || '$' AND j.node IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM job j WHERE j.lane >= l.resource AND j.lane < l.resource || '$' AND j.node IS NULL AND j.due_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM job j WHERE j.lane >= l.resource AND j.lane < l.resource || '$' AND j.node IS NULL AND j.due_at IS NOT NULL)
    ORDER BY l.resource
    LIMIT ?2
)
