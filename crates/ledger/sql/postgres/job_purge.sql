-- Deletes old finished jobs of days whose partition cannot be dropped even a day later, since a job of that day finished late;
-- answers the session and place of each. The job of a stage whose plan still waits for its result stays, and so does one that
-- its task waits for: the job's document begins with the names of its plan and task. No text within the task's document can
-- look as its own key does.
-- $1 age in ms, $2 below this id, $3 limit
DELETE FROM job_finished
WHERE id IN (
    SELECT id FROM job_finished f
    WHERE id < $2 AND finished_at < now() - $1 * interval '1 millisecond'
      AND NOT EXISTS (
          SELECT FROM plan_stage_run r
          JOIN plan_task t ON t.id = r.task AND t.run = r.run
          WHERE r.job = f.id AND r.status IN ('RUNNING', 'UNKNOWN')
      )
      AND NOT EXISTS (
          SELECT FROM plan_task t
          WHERE t.id = CAST(substring(left(f.stage, 100) FROM '"task":"([0-9a-f-]{36})"') AS uuid)
            AND strpos(t.document, '"waits_for":"' || f.id || '"') > 0
      )
    ORDER BY id
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
RETURNING session, seq
