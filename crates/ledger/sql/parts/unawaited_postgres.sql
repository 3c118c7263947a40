-- That no plan waits for the finished job f. It stays while it is the job of a stage whose plan still waits for its result, and
-- while its task waits for it: the job's document begins with the names of its plan and task. No text within the task's
-- document can look as its own key does.
NOT EXISTS (
    SELECT FROM plan_stage_run r
    JOIN plan_task t ON t.id = r.task AND t.run = r.run
    WHERE r.job = f.id AND r.status IN ('RUNNING', 'UNKNOWN')
)
AND NOT EXISTS (
    SELECT FROM plan_task t
    WHERE t.id = CAST(substring(left(f.stage, 100) FROM '"task":"([0-9a-f-]{36})"') AS uuid)
      AND strpos(t.document, '"waits_for":"' || f.id || '"') > 0
)
