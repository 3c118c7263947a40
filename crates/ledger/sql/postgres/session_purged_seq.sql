-- Jobs of sessions are forgotten: their places are not given again, and the sessions count as used now.
-- $1 sessions, each once and sorted, $2 the highest place in each
WITH of AS (
    SELECT s.session, w.seq
    FROM session s
    JOIN (SELECT unnest($1::text[]) AS session, unnest($2::bigint[]) AS seq) AS w ON s.session = w.session
    ORDER BY s.session
    FOR NO KEY UPDATE OF s
)
UPDATE session s
SET purged_seq = greatest(s.purged_seq, of.seq), forgotten_at = now()
FROM of
WHERE s.session = of.session
