-- Finished jobs of sessions by their places, below the lowest place of an unfinished one, and in each row, of which there is one
-- at least for each session, that place and whether the session is open: all as of one moment, so that no job that is being moved
-- is passed over. What is behind that place is not read. Each row says of which of the sessions it is, counted from 1. A page
-- ends early when its results become too many bytes.
-- $1 sessions, $2 each behind this place, $3 limit of each, $4 bytes after which the page of each ends
SELECT w.n, first.unfinished AS first_unfinished, first.is_open,
       page.id, page.seq, page.client_ref, page.outcome, page.result, page.error
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w (session, behind, jobs, n)
CROSS JOIN LATERAL (
    SELECT (SELECT seq FROM job WHERE session = w.session AND seq > 0 ORDER BY seq LIMIT 1) AS unfinished,
           EXISTS (SELECT FROM session s WHERE s.session = w.session AND s.closed_at IS NULL) AS is_open
    -- So that both are looked for once, and not where they are named.
    OFFSET 0
) AS first
LEFT JOIN LATERAL (
    SELECT *
    FROM (
        SELECT j.*, sum(coalesce(octet_length(result), 0)) OVER (ORDER BY seq, id) - coalesce(octet_length(result), 0) AS text_before
        FROM (
            SELECT id, seq, client_ref, outcome, result, error
            FROM job_finished
            WHERE session = w.session AND seq > w.behind AND seq < coalesce(first.unfinished, 9223372036854775807)
            ORDER BY seq, id
            LIMIT w.jobs
        ) AS j
    ) AS sized
    WHERE text_before < $4
) AS page ON TRUE
ORDER BY w.n, page.seq, page.id
