-- Whether a job of that day finished lately, or is that of a stage whose plan still waits for its result, or is one that a
-- task waits for. A plan with such a task needs an owner. The capitals stand for the day's number.
-- $1 age in ms
SELECT EXISTS (SELECT FROM job_finished_DAY WHERE finished_at >= now() - $1 * interval '1 millisecond')
    OR EXISTS (
        SELECT FROM plan_stage_run r
        JOIN plan_task t ON t.id = r.task AND t.run = r.run
        JOIN job_finished_DAY f ON f.id = r.job
        WHERE r.status IN ('RUNNING', 'UNKNOWN')
    )
    OR EXISTS (
        SELECT FROM plan p
        JOIN plan_task t ON t.plan = p.id
        -- So that only the documents of tasks with a job of that day are read.
        JOIN plan_stage_run r ON r.task = t.id
        JOIN job_finished_DAY f ON f.id = r.job
        WHERE p.needs_owner AND strpos(t.document, '"waits_for":"' || f.id || '"') > 0
    )
