-- Stages of runs, as they are now.
-- $1 tasks, $2 runs, $3 stages, $4 statuses, $5 jobs
INSERT INTO plan_stage_run AS r (task, run, stage, status, job, updated_at)
SELECT w.task, w.run, w.stage, w.status, w.job, now()
FROM (
    SELECT unnest($1::uuid[]) AS task, unnest($2::bigint[]) AS run, unnest($3::bigint[]) AS stage,
           unnest($4::text[]) AS status, unnest($5::uuid[]) AS job
) AS w
ON CONFLICT (task, run, stage)
DO UPDATE SET status = excluded.status, job = coalesce(excluded.job, r.job), updated_at = excluded.updated_at
