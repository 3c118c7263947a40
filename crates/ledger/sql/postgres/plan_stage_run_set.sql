-- Stages of runs, as they are now.
-- $1 tasks, $2 runs, $3 stages, $4 statuses, $5 jobs
INSERT INTO plan_stage_run AS r (task, run, stage, status, job, updated_at)
SELECT w.task, w.run, w.stage, w.status, w.job, now()
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::uuid[]) AS w (task, run, stage, status, job)
ON CONFLICT (task, run, stage)
DO UPDATE SET status = excluded.status, job = coalesce(excluded.job, r.job), updated_at = excluded.updated_at
