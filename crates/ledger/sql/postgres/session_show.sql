-- A session, and how long ago something last happened in it: it was made, a job ended or was forgotten, or one was
-- submitted.
-- $1 session
SELECT s.*,
       floor(greatest(0, extract(epoch FROM now() - greatest(
           s.created_at, s.forgotten_at,
           (SELECT finished_at FROM job_finished WHERE session = $1 ORDER BY finished_at DESC LIMIT 1),
           (SELECT created_at FROM job WHERE session = $1 ORDER BY seq DESC LIMIT 1)
       )) * 1000))::bigint AS idle_for_ms
FROM session s
WHERE s.session = $1
