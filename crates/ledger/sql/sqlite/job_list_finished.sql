-- Finished jobs, newest first, without their payloads, results and past attempts: a page has as many as it says, however large
-- they are. A line with a mark is there only if the filter asks for it.
-- ?1 before this id, ?2 limit, ?3 session, ?4 tenant, ?5 pool, ?6 kind, ?7 outcome,
-- ?8 after this id, ?9 JSON array of sessions
SELECT {listed_job}, '' AS past_attempts,
       outcome, dead, CAST(NULL AS text) AS result, error, finished_at, released_at, retried_as, dismissed_at
FROM job_finished
WHERE id < ?1
  AND session = ?3 --? session
  AND tenant = ?4 AND tenant <> '' --? tenant
  AND pool = ?5 AND pool <> '' --? pool
  AND kind = ?6 --? kind
  AND outcome = ?7 --? outcome
  AND outcome <> 'succeeded' --? unsuccessful
  AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
  AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
  AND retried_as IS NOT NULL --? retried
  AND retried_as IS NULL --? not_retried
  AND stage IS NULL --? no_stage
  AND id > ?8 --? after
  AND session IS NOT NULL AND session IN (SELECT value FROM json_each(?9)) --? sessions
  AND (SELECT s.closed_at FROM session s WHERE s.session = job_finished.session) IS NULL --? open_session
ORDER BY id DESC
LIMIT ?2
