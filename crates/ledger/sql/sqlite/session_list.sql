-- Sessions in the order of their ids, and how long ago something last happened in each. A line with a mark is there only if
-- the filter asks for it.
-- ?1 behind this session, ?2 limit, ?3 tenant, ?4 pool
SELECT s.session, s.tenant, s.pool, s.route_source, s.route_target, s.requires, s.ordering, s.idle_ms,
       s.created_at, s.closed_at,
       max(0, {now} - max(
           s.created_at, coalesce(s.forgotten_at, 0),
           coalesce((SELECT f.finished_at FROM job_finished f
                     WHERE f.session = s.session ORDER BY f.finished_at DESC LIMIT 1), 0),
           coalesce((SELECT j.created_at FROM job j WHERE j.session = s.session ORDER BY j.seq DESC LIMIT 1), 0)
       )) / 1000 AS idle_for_ms
FROM (
    SELECT session, tenant, pool, route_source, route_target, requires, ordering, idle_ms, created_at, closed_at,
           forgotten_at
    FROM session
    WHERE session > ?1
      AND closed_at IS NULL --? open
      AND closed_at IS NOT NULL --? closed
      AND tenant = ?3 --? tenant
      AND pool = ?4 AND pool <> '' --? pool
    ORDER BY session
    LIMIT ?2
) AS s
ORDER BY s.session
