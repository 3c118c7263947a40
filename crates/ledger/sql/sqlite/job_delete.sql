-- Deletes finished jobs, but for those that a plan waits for; answers them, each with its session and its place there. A line
-- with a mark is there only if a bulk operation's filter asks for it.
-- ?1 JSON array of ids
DELETE FROM job_finished AS f
WHERE id IN (SELECT value FROM json_each(?1))
  AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
  AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
  AND {unawaited}
RETURNING id, session, seq
