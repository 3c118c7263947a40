-- Deletes old finished jobs; answers the session and place of each. The job of a stage whose plan still waits for
-- its result stays, and so does one that its task waits for: the job's document begins with the names of its plan and task,
-- which are read by their place. No text within the task's document can look as its own key does.
-- ?1 age in ms, ?2 limit
DELETE FROM job_finished
WHERE id IN (
    SELECT id FROM job_finished f
    WHERE finished_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?1 * 1000
      AND NOT EXISTS (
          SELECT 1 FROM plan_stage_run r
          JOIN plan_task t ON t.id = r.task AND t.run = r.run
          WHERE r.job = f.id AND r.status IN ('RUNNING', 'UNKNOWN')
      )
      AND NOT EXISTS (
          SELECT 1 FROM plan_task t
          WHERE t.id = substr(f.stage, 56, 36) AND instr(t.document, '"waits_for":"' || f.id || '"') > 0
      )
    ORDER BY finished_at
    LIMIT ?2
)
RETURNING session, seq
