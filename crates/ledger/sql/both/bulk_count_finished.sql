-- How many finished jobs a bulk operation is about. A line with a mark is there only if the filter asks for it.
-- $1 behind this id, $2 before this time, $3 at most, $4 session, $5 tenant, $6 pool, $7 kind, $8 outcome,
-- $9 before this id: later ones were made after that time, and are not read
SELECT count(*) AS jobs
FROM (
    SELECT id
    FROM job_finished
    WHERE id > $1 AND id < $9 AND finished_at < $2
      AND session = $4 --? session
      AND tenant = $5 AND tenant <> '' --? tenant
      AND pool = $6 AND pool <> '' --? pool
      AND kind = $7 --? kind
      AND outcome = $8 --? outcome
      AND outcome <> 'succeeded' --? unsuccessful
      AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
      AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
      AND retried_as IS NOT NULL --? retried
      AND retried_as IS NULL --? not_retried
      AND stage IS NULL --? no_stage
    LIMIT $3
) AS found
