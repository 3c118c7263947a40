-- Deletes old finished jobs of days whose partition cannot be dropped even a day later, since a job of that day finished late;
-- answers the session and place of each. The job of a stage whose plan still waits for its result stays.
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
    ORDER BY id
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
RETURNING session, seq
