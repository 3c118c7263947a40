-- Some of the unfinished jobs, by their ids, counted by the pool that they name and by their tenant ('' for none): how many in each
-- state, how many of those that wait are not due yet or are held, and for how many milliseconds the one that waits longest has been
-- due; and the last one's id.
-- $1 behind this id, $2 how many
WITH piece AS (
    SELECT id, pool, tenant, state, due_at, created_at FROM job WHERE id > $1 ORDER BY id LIMIT $2
)
SELECT pool, tenant,
       count(*) FILTER (WHERE state = 'CREATED') AS created,
       count(*) FILTER (WHERE state = 'CREATED' AND due_at > now()) AS delayed,
       count(*) FILTER (WHERE state = 'DISPATCHED') AS dispatched,
       count(*) FILTER (WHERE state = 'RUNNING') AS running,
       (extract(epoch FROM now() - min(coalesce(due_at, created_at))
                                   FILTER (WHERE state = 'CREATED' AND (due_at IS NULL OR due_at <= now())))
        * 1000)::bigint AS oldest_ms,
       (SELECT id FROM piece ORDER BY id DESC LIMIT 1) AS last
FROM piece
GROUP BY pool, tenant
