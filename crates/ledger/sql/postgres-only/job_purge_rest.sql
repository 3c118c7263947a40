-- Deletes old finished jobs that no day's partition took; answers the session and place of each. The job of a
-- stage whose plan still waits for its result stays.
-- $1 age in ms, $2 limit
DELETE FROM job_finished_rest
WHERE id IN (
    SELECT id FROM job_finished_rest f
    WHERE finished_at < now() - $1 * interval '1 millisecond'
      AND NOT EXISTS (
          SELECT FROM plan_stage_run r
          JOIN plan_task t ON t.id = r.task AND t.run = r.run
          WHERE r.job = f.id AND r.status IN ('RUNNING', 'UNKNOWN')
      )
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
RETURNING session, seq
