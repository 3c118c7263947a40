-- Looks at the lanes that have unfinished jobs, one after the other by their names, and answers those that have
-- something due and no live owner: nobody has a live lease of theirs, or whoever has it shows no life itself. The last
-- lane looked at is answered in any case, so that the next page goes on behind it.
-- ?1 after this lane, ?2 due within so many ms, ?3 how many lanes to look at
WITH RECURSIVE clock AS (
    SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS at
), seen AS (
    SELECT 0 AS n, ?1 AS lane
    UNION ALL
    SELECT seen.n + 1,
           (SELECT min(lane)
            FROM (SELECT (SELECT lane FROM job INDEXED BY job_in_flight
                          WHERE node IS NOT NULL AND lane > seen.lane ORDER BY lane LIMIT 1) AS lane
                  UNION ALL
                  SELECT (SELECT lane FROM job INDEXED BY job_waiting
                          WHERE node IS NULL AND due_at IS NULL AND lane > seen.lane ORDER BY lane LIMIT 1)
                  UNION ALL
                  SELECT (SELECT lane FROM job INDEXED BY job_delayed
                          WHERE node IS NULL AND due_at IS NOT NULL AND lane > seen.lane ORDER BY lane LIMIT 1)))
    FROM seen
    WHERE seen.n < ?3 AND seen.lane IS NOT NULL
), looked_at AS (
    SELECT seen.n, seen.lane, held.owner,
           life.resource IS NULL
           AND (EXISTS (SELECT 1 FROM job WHERE lane = seen.lane AND node IS NOT NULL)
                OR EXISTS (SELECT 1 FROM job WHERE lane = seen.lane AND node IS NULL AND due_at IS NULL)
                OR EXISTS (SELECT 1 FROM job
                           WHERE lane = seen.lane AND node IS NULL AND due_at IS NOT NULL
                             AND due_at <= clock.at + ?2 * 1000)) AS is_left
    FROM seen
    CROSS JOIN clock
    LEFT JOIN lease held ON held.resource = seen.lane AND held.owner IS NOT NULL AND held.expires_at > clock.at
    LEFT JOIN lease life ON life.resource = 'instance:' || held.owner AND life.owner = held.owner
                            AND life.expires_at > clock.at
    WHERE seen.n > 0 AND seen.lane IS NOT NULL
)
SELECT lane, owner, is_left, n = ?3 AS is_last
FROM looked_at
WHERE is_left OR n = ?3
ORDER BY n
