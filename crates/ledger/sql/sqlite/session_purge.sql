-- Forgets sessions that were closed long ago and that no job names; answers them. session_free follows for these. One
-- whose lease somebody has, or had lately, stays.
-- ?1 before this time, ?2 limit
DELETE FROM session
WHERE session IN (
    SELECT s.session
    FROM session s
    WHERE s.closed_at < ?1
      AND (SELECT j.seq FROM job j WHERE j.session = s.session LIMIT 1) IS NULL
      AND (SELECT f.seq FROM job_finished f WHERE f.session = s.session LIMIT 1) IS NULL
      AND coalesce((SELECT l.expires_at FROM lease l WHERE l.resource = 'session:' || s.session) < ?1, TRUE)
    ORDER BY s.closed_at
    LIMIT ?2
)
RETURNING session
