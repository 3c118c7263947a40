-- The unfinished jobs by the pool that they name ('' for none): how many in each state, how many of those that wait are not
-- due yet or are held, and for how many milliseconds the one that waits longest has been due. Reads all of the table: not
-- for every request.
SELECT pool,
       count(*) FILTER (WHERE state = 'CREATED') AS created,
       count(*) FILTER (WHERE state = 'CREATED' AND due_at > now()) AS delayed,
       count(*) FILTER (WHERE state = 'DISPATCHED') AS dispatched,
       count(*) FILTER (WHERE state = 'RUNNING') AS running,
       (extract(epoch FROM now() - min(coalesce(due_at, created_at))
                                   FILTER (WHERE state = 'CREATED' AND (due_at IS NULL OR due_at <= now())))
        * 1000)::bigint AS oldest_ms
FROM job
GROUP BY pool
