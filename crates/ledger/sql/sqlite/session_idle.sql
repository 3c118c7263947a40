-- Looks at open sessions, one after the other by their names, and answers those in which nothing has happened for
-- longer than they allow, which have no unfinished job, and of which nobody has a live lease. The last one looked at is
-- answered in any case, so that the next page goes on behind it. Each costs a few steps of indexes.
-- ?1 after this session, ?2 how many to look at, ?3 how much older rows may look than they are, in ms
WITH clock AS (
    SELECT {now} AS at
)
SELECT session, is_idle, n = ?2 AS is_last
FROM (
    SELECT s.session, s.n,
           s.since > s.used_at
           AND coalesce((SELECT l.expires_at FROM lease l
                         WHERE l.resource = 'session:' || s.session AND l.owner IS NOT NULL) <= s.at, TRUE)
           AND (SELECT j.seq FROM job j WHERE j.session = s.session ORDER BY j.seq LIMIT 1) IS NULL
           AND (SELECT f.finished_at FROM job_finished f
                WHERE f.session = s.session AND f.finished_at >= s.since
                ORDER BY f.finished_at LIMIT 1) IS NULL AS is_idle
    FROM (
        SELECT session, max(created_at, coalesce(forgotten_at, 0)) AS used_at, clock.at,
               clock.at - (idle_ms + ?3) * 1000 AS since,
               row_number() OVER (ORDER BY session) AS n
        FROM (
            SELECT session, created_at, forgotten_at, idle_ms
            FROM session INDEXED BY session_open
            WHERE closed_at IS NULL AND session > ?1
            ORDER BY session
            LIMIT ?2
        ) AS open
        CROSS JOIN clock
    ) AS s
) AS looked_at
WHERE is_idle OR n = ?2
ORDER BY n
