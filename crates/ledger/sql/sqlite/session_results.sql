-- Finished jobs of a session by their places, below the lowest place of an unfinished one, and in each row, of which there is
-- one at least, that place and whether the session is open: all as of one moment, so that no job that is being moved is passed
-- over. What is behind that place is not read. A page ends early when its results become too many bytes.
-- $1 session, $2 behind this place, $3 limit, $4 bytes after which a page ends
WITH first AS MATERIALIZED (
    SELECT (SELECT seq FROM job WHERE session = $1 AND seq > 0 ORDER BY seq LIMIT 1) AS unfinished,
           EXISTS (SELECT 1 FROM session WHERE session = $1 AND closed_at IS NULL) AS is_open
)
SELECT first.unfinished AS first_unfinished, first.is_open, page.id, page.seq, page.client_ref, page.outcome, page.result, page.error
FROM first
LEFT JOIN (
    SELECT *
    FROM (
        SELECT j.*, sum(coalesce(octet_length(result), 0)) OVER (ORDER BY seq, id) - coalesce(octet_length(result), 0) AS text_before
        FROM (
            SELECT id, seq, client_ref, outcome, result, error
            FROM job_finished
            WHERE session = $1 AND seq > $2 AND seq < coalesce((SELECT unfinished FROM first), 9223372036854775807)
            ORDER BY seq, id
            LIMIT $3
        ) AS j
    ) AS sized
    WHERE text_before < $4
) AS page ON TRUE
ORDER BY page.seq, page.id
