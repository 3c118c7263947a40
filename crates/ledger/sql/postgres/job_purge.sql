-- Deletes old finished jobs of days whose partition cannot be dropped even a day later, since a job of that day finished late,
-- but for those that a plan waits for; answers the session and place of each. Jobs without a day's partition are not read: very
-- many of them may have been made long ago and have finished lately.
-- $1 age in ms, $2 the days' first id, $3 the first id behind these days, $4 limit
DELETE FROM job_finished
WHERE id >= $2 AND id < $3
  AND id IN (
      SELECT id FROM job_finished f
      WHERE id >= $2 AND id < $3 AND finished_at < now() - $1 * interval '1 millisecond'
        AND {unawaited}
      ORDER BY id
      LIMIT $4
      FOR UPDATE SKIP LOCKED
  )
RETURNING session, seq
