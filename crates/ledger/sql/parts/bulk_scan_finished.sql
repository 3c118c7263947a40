-- So many finished jobs of one index: a line with a mark by_... is there only if the filter's leading condition is that one.
-- $1 behind this id, $4 session, $5 tenant, $6 pool, $7 kind, $8 outcome, $9 before this id: later ones were made after the
-- time $2, and are not read; $10 how many are read
WITH scanned AS (
    SELECT id, finished_at, session, tenant, pool, kind, outcome, retried_as, dismissed_at, stage
    FROM job_finished
    WHERE id > $1 AND id < $9
      AND session = $4 --? by_session
      AND tenant = $5 AND tenant <> '' --? by_tenant
      AND pool = $6 AND pool <> '' --? by_pool
      AND kind = $7 --? by_kind
      AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? by_dead
      AND outcome = $8 AND outcome <> 'succeeded' --? by_unsuccessful
      AND retried_as IS NOT NULL --? by_retried
    ORDER BY id
    LIMIT $10
)
