-- Finished jobs of sessions by their places, and in each row, of which there is one at least for each session, the lowest
-- place of an unfinished one of that session: all as of one moment, so that a job that is being moved is in exactly one of
-- them. Each row says of which of the sessions it is, counted from 1. A page ends early when its results become too many
-- bytes.
-- $1 sessions, $2 each behind this place, $3 limit of each, $4 bytes after which the page of each ends
SELECT w.n, first.unfinished AS first_unfinished, page.id, page.seq, page.client_ref, page.outcome, page.result, page.error
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w (session, behind, jobs, n)
CROSS JOIN LATERAL (
    SELECT (SELECT seq FROM job WHERE session = w.session AND seq > 0 ORDER BY seq LIMIT 1) AS unfinished
) AS first
LEFT JOIN LATERAL (
    SELECT *
    FROM (
        SELECT j.*, sum(coalesce(octet_length(result), 0)) OVER (ORDER BY seq, id) - coalesce(octet_length(result), 0) AS text_before
        FROM (
            SELECT id, seq, client_ref, outcome, result, error
            FROM job_finished
            WHERE session = w.session AND seq > w.behind
            ORDER BY seq, id
            LIMIT w.jobs
        ) AS j
    ) AS sized
    WHERE text_before < $4
) AS page ON TRUE
ORDER BY w.n, page.seq, page.id
