-- New definitions of tasks.
-- $1 tasks, $2 versions, $3 stages
INSERT INTO plan_definition (task, version, stages, created_at)
SELECT w.task, w.version, w.stages, now()
FROM (SELECT unnest($1::uuid[]) AS task, unnest($2::bigint[]) AS version, unnest($3::text[]) AS stages) AS w
