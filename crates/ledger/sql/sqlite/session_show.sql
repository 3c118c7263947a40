-- A session, and how long ago something last happened in it: it was made, a job ended or was forgotten, or one was
-- submitted.
-- ?1 session
SELECT s.*,
       max(0, {now} - max(
           s.created_at, coalesce(s.forgotten_at, 0),
           coalesce((SELECT finished_at FROM job_finished WHERE session = ?1 ORDER BY finished_at DESC LIMIT 1), 0),
           coalesce((SELECT created_at FROM job WHERE session = ?1 ORDER BY seq DESC LIMIT 1), 0)
       )) / 1000 AS idle_for_ms
FROM session s
WHERE s.session = ?1
