-- New definitions of tasks.
-- $1 tasks, $2 versions, $3 stages
INSERT INTO plan_definition (task, version, stages, created_at)
SELECT w.task, w.version, w.stages, now()
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS w (task, version, stages)
