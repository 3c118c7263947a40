-- Stages of runs, as they are now.
-- ?1 JSON array of {task, run, stage, status, job}, ?2 the transaction's time
INSERT INTO plan_stage_run (task, run, stage, status, job, updated_at)
SELECT w.value ->> 'task', w.value ->> 'run', w.value ->> 'stage', w.value ->> 'status', w.value ->> 'job', ?2
FROM json_each(?1) AS w
WHERE TRUE
ON CONFLICT (task, run, stage)
DO UPDATE SET status = excluded.status, job = coalesce(excluded.job, plan_stage_run.job),
              updated_at = excluded.updated_at
