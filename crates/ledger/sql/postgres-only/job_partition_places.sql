-- A day's jobs are about to be forgotten: their places are not given again in sessions that go on. Only sessions with such
-- a job are locked, in one order; one that is closed by then is left out. The capitals stand for the day's number.
-- $1 sessions made before this (microseconds since 1970)
WITH going_on AS (
    SELECT s.session, last.seq
    FROM session s
    CROSS JOIN LATERAL (
        SELECT f.seq FROM job_finished_DAY f WHERE f.session = s.session ORDER BY f.seq DESC LIMIT 1
    ) AS last
    WHERE s.closed_at IS NULL AND s.created_at < 'epoch'::timestamptz + $1 * interval '1 microsecond'
    ORDER BY s.session
    FOR NO KEY UPDATE OF s
)
UPDATE session s
SET purged_seq = greatest(s.purged_seq, going_on.seq), forgotten_at = now()
FROM going_on
WHERE s.session = going_on.session
