-- Deletes finished jobs; answers them, each with its session and its place there. The job of a stage whose plan still waits
-- for its result stays, and so does one that its task waits for: the job's document begins with the names of its plan and
-- task, which are read by their place. No text within the task's document can look as its own key does. A line with a mark
-- is there only if a bulk operation's filter asks for it.
-- ?1 JSON array of ids
DELETE FROM job_finished
WHERE id IN (SELECT value FROM json_each(?1))
  AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
  AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
  AND NOT EXISTS (
      SELECT 1 FROM plan_stage_run r
      JOIN plan_task t ON t.id = r.task AND t.run = r.run
      WHERE r.job = job_finished.id AND r.status IN ('RUNNING', 'UNKNOWN')
  )
  AND NOT EXISTS (
      SELECT 1 FROM plan_task t
      WHERE t.id = substr(job_finished.stage, 56, 36)
        AND instr(t.document, '"waits_for":"' || job_finished.id || '"') > 0
  )
RETURNING id, session, seq
