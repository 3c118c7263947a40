-- Looks at the lanes that have unfinished jobs, one after the other by their names, and answers those that have
-- something due and no live owner: their lease is not live, or the instance that has it is not, or it is the caller. A
-- lane's lease is what its name says before the number. The last lane looked at is answered in any case: the next page
-- begins behind it.
-- ?1 after this lane, ?2 due within this many ms, ?3 how many lanes to look at, ?4 the caller
WITH RECURSIVE clock AS (
    SELECT {now} AS at
), step AS (
    -- The next lane with jobs of each kind, '~' for none, which is above all names. The lane looked at is the first of
    -- the three.
    SELECT 0 AS n, ?1 AS in_flight, '~' AS waiting, '~' AS delayed
    UNION ALL
    SELECT step.n + 1,
           coalesce((SELECT lane FROM job INDEXED BY job_in_flight
                     WHERE node IS NOT NULL AND lane > min(step.in_flight, step.waiting, step.delayed)
                     ORDER BY lane LIMIT 1), '~'),
           coalesce((SELECT lane FROM job INDEXED BY job_waiting
                     WHERE node IS NULL AND due_at IS NULL
                       AND lane > min(step.in_flight, step.waiting, step.delayed)
                     ORDER BY lane LIMIT 1), '~'),
           coalesce((SELECT lane FROM job INDEXED BY job_delayed
                     WHERE node IS NULL AND due_at IS NOT NULL
                       AND lane > min(step.in_flight, step.waiting, step.delayed)
                     ORDER BY lane LIMIT 1), '~')
    FROM step
    WHERE step.n < ?3 AND min(step.in_flight, step.waiting, step.delayed) <> '~'
), seen AS (
    SELECT n, min(in_flight, waiting, delayed) AS lane, in_flight, waiting
    FROM step
    WHERE n > 0 AND min(in_flight, waiting, delayed) <> '~'
), looked_at AS (
    SELECT seen.n, seen.lane, held.owner,
           (life.resource IS NULL OR held.owner = ?4)
           AND (seen.in_flight = seen.lane
                OR seen.waiting = seen.lane
                OR coalesce((SELECT min(due_at) FROM job INDEXED BY job_delayed
                             WHERE lane = seen.lane AND node IS NULL AND due_at IS NOT NULL)
                            <= clock.at + ?2 * 1000, FALSE)) AS is_left
    FROM seen
    CROSS JOIN clock
    LEFT JOIN lease held ON held.resource = substr(seen.lane, 1, instr(seen.lane || '#', '#') - 1)
                            AND held.owner IS NOT NULL AND held.expires_at > clock.at
    LEFT JOIN lease life ON life.resource = 'instance:' || held.owner AND life.owner = held.owner
                            AND life.expires_at > clock.at
)
SELECT lane, owner, is_left, n = ?3 AS is_last
FROM looked_at
WHERE is_left OR n = ?3
ORDER BY n
