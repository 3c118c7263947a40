-- How many finished jobs a bulk operation is about, among so many of one index, with the number and the last of these. A line
-- with a mark is there only if the filter asks for it.
-- $1 behind this id, $2 before this time, $3 not used, $4 session, $5 tenant, $6 pool, $7 kind, $8 outcome,
-- $9 before this id: later ones were made after that time, and are not read; $10 how many are read,
-- $11 the one tenant and $12 the one pool that the caller sees
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
SELECT (
        SELECT count(*)
        FROM scanned
        WHERE finished_at < $2
          AND session = $4 --? session
          AND tenant = $5 AND tenant <> '' --? tenant
          AND pool = $6 AND pool <> '' --? pool
          AND kind = $7 --? kind
          AND outcome = $8 --? outcome
          AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
          AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
          AND retried_as IS NOT NULL --? retried
          AND retried_as IS NULL --? not_retried
          AND stage IS NULL --? no_stage
          AND (session IS NULL AND tenant = $11 --? only_tenant
               OR EXISTS (SELECT 1 FROM session s WHERE s.session = scanned.session AND s.tenant = $11)) --? only_tenant
          AND (session IS NULL AND pool = $12 --? only_pool
               OR EXISTS (SELECT 1 FROM session s WHERE s.session = scanned.session AND s.pool = $12)) --? only_pool
          AND (SELECT s.closed_at FROM session s WHERE s.session = scanned.session) IS NULL --? open_session
    ) AS matching,
    (SELECT count(*) FROM scanned) AS jobs, (SELECT id FROM scanned ORDER BY id DESC LIMIT 1) AS last_scanned
