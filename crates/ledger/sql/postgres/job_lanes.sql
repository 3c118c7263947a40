-- Looks at the lanes that have unfinished jobs, one after the other by their names, and answers those that have
-- something due and no live owner: nobody has a live lease of theirs, or whoever has it shows no life itself. The last
-- lane looked at is answered in any case, so that the next page goes on behind it.
-- $1 after this lane, $2 due within so many ms, $3 how many lanes to look at
WITH RECURSIVE seen AS (
    SELECT 0::bigint AS n, $1::text COLLATE "C" AS lane
    UNION ALL
    SELECT seen.n + 1,
           least((SELECT lane FROM job
                  WHERE node IS NOT NULL AND lane > seen.lane ORDER BY lane LIMIT 1),
                 (SELECT lane FROM job
                  WHERE node IS NULL AND due_at IS NULL AND lane > seen.lane ORDER BY lane LIMIT 1),
                 (SELECT lane FROM job
                  WHERE node IS NULL AND due_at IS NOT NULL AND lane > seen.lane ORDER BY lane LIMIT 1))
    FROM seen
    WHERE seen.n < $3 AND seen.lane IS NOT NULL
), looked_at AS (
    SELECT seen.n, seen.lane, held.owner,
           life.resource IS NULL
           AND (EXISTS (SELECT FROM job WHERE lane = seen.lane AND node IS NOT NULL)
                OR EXISTS (SELECT FROM job WHERE lane = seen.lane AND node IS NULL AND due_at IS NULL)
                OR EXISTS (SELECT FROM job
                           WHERE lane = seen.lane AND node IS NULL AND due_at IS NOT NULL
                             AND due_at <= now() + $2 * interval '1 millisecond')) AS is_left
    FROM seen
    LEFT JOIN lease held ON held.resource = seen.lane AND held.owner IS NOT NULL AND held.expires_at > now()
    LEFT JOIN lease life ON life.resource = 'instance:' || held.owner AND life.owner = held.owner
                            AND life.expires_at > now()
    WHERE seen.n > 0 AND seen.lane IS NOT NULL
)
SELECT lane, owner, is_left, n = $3 AS is_last
FROM looked_at
WHERE is_left OR n = $3
ORDER BY n
