-- Raises the next place in every open session past those that were given since.
-- ?1 so many places
UPDATE session AS s
SET purged_seq = known.seq + min(?1, 9223372036854775807 - known.seq)
FROM (
    SELECT session, max(
        coalesce((SELECT j.seq FROM job j WHERE j.session = o.session ORDER BY j.seq DESC LIMIT 1), 0),
        coalesce((SELECT f.seq FROM job_finished f WHERE f.session = o.session ORDER BY f.seq DESC LIMIT 1), 0),
        purged_seq
    ) AS seq
    FROM session o
    WHERE closed_at IS NULL
) AS known
WHERE s.session = known.session
