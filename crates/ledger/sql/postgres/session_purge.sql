-- Forgets sessions that were closed long ago and that no job names, with their leases: such an id is never acquired
-- again. One whose lease somebody has, or had lately, stays.
-- $1 age in ms, $2 limit
WITH old AS (
    SELECT s.session, 'session:' || s.session AS resource
    FROM session s
    WHERE s.closed_at < now() - $1 * interval '1 millisecond'
      AND (SELECT j.seq FROM job j WHERE j.session = s.session LIMIT 1) IS NULL
      AND (SELECT f.seq FROM job_finished f WHERE f.session = s.session LIMIT 1) IS NULL
      AND coalesce((SELECT l.expires_at FROM lease l WHERE l.resource = 'session:' || s.session)
                   < now() - $1 * interval '1 millisecond', TRUE)
    ORDER BY s.closed_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), freed AS (
    -- Asked once more of each row as it is when it is deleted.
    DELETE FROM lease l
    USING old
    WHERE l.resource = old.resource AND l.expires_at < now() - $1 * interval '1 millisecond'
    RETURNING l.resource
)
DELETE FROM session s
USING old
WHERE s.session = old.session
  AND (old.resource IN (SELECT resource FROM freed)
       OR NOT EXISTS (SELECT FROM lease l WHERE l.resource = old.resource))
