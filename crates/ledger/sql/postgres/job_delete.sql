-- Deletes finished jobs; answers them, each with its session and its place there. The job of a stage whose plan still waits
-- for its result stays, and so does one that its task waits for: the job's document begins with the names of its plan and
-- task. No text within the task's document can look as its own key does. Their rows are locked in one order. A line with a
-- mark is there only if a bulk operation's filter asks for it; it holds for the row as it is once it is locked.
-- $1 ids, $2 the lowest and $3 the highest of them, by which partitions are left out
WITH locked AS MATERIALIZED (
    SELECT id
    FROM job_finished f
    WHERE id = ANY ($1::uuid[]) AND id BETWEEN $2 AND $3
      AND outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL --? dead
      AND NOT (outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL) --? not_dead
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
    FOR UPDATE
)
DELETE FROM job_finished AS f
USING locked
WHERE f.id = locked.id AND f.id BETWEEN $2 AND $3
RETURNING f.id, f.session, f.seq
