-- Some of the unfinished jobs, by their ids, counted by the pool that they name and by their tenant ('' for none): how many in each
-- state, how many of those that wait are not due yet or are held, and for how many milliseconds the one that waits longest has been
-- due; and the last one's id.
-- ?1 behind this id, ?2 how many
WITH clock AS (
    SELECT {now} AS at
), piece AS (
    SELECT id, pool, tenant, state, due_at, created_at FROM job WHERE id > ?1 ORDER BY id LIMIT ?2
)
SELECT pool, tenant,
       count(*) FILTER (WHERE state = 'CREATED') AS created,
       count(*) FILTER (WHERE state = 'CREATED' AND due_at > clock.at) AS delayed,
       count(*) FILTER (WHERE state = 'DISPATCHED') AS dispatched,
       count(*) FILTER (WHERE state = 'RUNNING') AS running,
       (clock.at - min(coalesce(due_at, created_at))
                   FILTER (WHERE state = 'CREATED' AND (due_at IS NULL OR due_at <= clock.at))) / 1000 AS oldest_ms,
       (SELECT max(id) FROM piece) AS last
FROM piece
CROSS JOIN clock
GROUP BY pool, tenant
