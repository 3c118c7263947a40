-- Looks at the lanes that have unfinished jobs, one after the other by their names, and answers those that have
-- something due and no live owner: their lease is not live, or the instance that has it is not, or it is the caller. A
-- lane's lease is what its name says before the number. The last lane looked at is answered in any case: the next page
-- begins behind it.
-- $1 after this lane, $2 due within this many ms, $3 how many lanes to look at, $4 the caller
WITH RECURSIVE step AS (
    -- The next lane with jobs of each kind. The lane looked at is the first of the three.
    SELECT 0::bigint AS n, $1::text COLLATE "C" AS in_flight, NULL::text COLLATE "C" AS waiting,
           NULL::text COLLATE "C" AS delayed
    UNION ALL
    SELECT step.n + 1,
           (SELECT lane FROM job
            WHERE node IS NOT NULL AND lane > least(step.in_flight, step.waiting, step.delayed)
            ORDER BY lane LIMIT 1),
           (SELECT lane FROM job
            WHERE node IS NULL AND due_at IS NULL AND lane > least(step.in_flight, step.waiting, step.delayed)
            ORDER BY lane LIMIT 1),
           (SELECT lane FROM job
            WHERE node IS NULL AND due_at IS NOT NULL AND lane > least(step.in_flight, step.waiting, step.delayed)
            ORDER BY lane LIMIT 1)
    FROM step
    WHERE step.n < $3 AND least(step.in_flight, step.waiting, step.delayed) IS NOT NULL
), seen AS (
    SELECT n, least(in_flight, waiting, delayed) AS lane, in_flight, waiting
    FROM step
    WHERE n > 0 AND least(in_flight, waiting, delayed) IS NOT NULL
), looked_at AS (
    SELECT seen.n, seen.lane, held.owner,
           (life.resource IS NULL OR held.owner = $4)
           AND (seen.in_flight IS NOT DISTINCT FROM seen.lane
                OR seen.waiting IS NOT DISTINCT FROM seen.lane
                OR coalesce((SELECT min(due_at) FROM job
                             WHERE lane = seen.lane AND node IS NULL AND due_at IS NOT NULL)
                            <= now() + $2 * interval '1 millisecond', FALSE)) AS is_left
    FROM seen
    LEFT JOIN lease held ON held.resource = split_part(seen.lane, '#', 1) AND held.owner IS NOT NULL AND held.expires_at > now()
    LEFT JOIN lease life ON life.resource = 'instance:' || held.owner AND life.owner = held.owner
                            AND life.expires_at > now()
)
SELECT lane, owner, is_left, n = $3 AS is_last
FROM looked_at
WHERE is_left OR n = $3
ORDER BY n
