-- Jobs of sessions are forgotten: their places are not given again, and the sessions count as used now.
-- $1 sessions, each once and sorted, $2 the highest place in each
WITH behind AS (
    SELECT s.session, w.seq
    FROM session s
    JOIN (SELECT unnest($1::text[]) AS session, unnest($2::bigint[]) AS seq) AS w ON s.session = w.session
    WHERE s.purged_seq < w.seq
    ORDER BY s.session
    FOR NO KEY UPDATE OF s
)
UPDATE session s
SET purged_seq = behind.seq, forgotten_at = now()
FROM behind
WHERE s.session = behind.session AND s.purged_seq < behind.seq
