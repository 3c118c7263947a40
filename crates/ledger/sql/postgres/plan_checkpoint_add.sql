-- New checkpoints.
-- $1 tasks, $2 versions, $3 runs, $4 definitions, $5 completed stages, $6 contexts
INSERT INTO plan_checkpoint (task, version, run, definition, completed, context, saved_at)
SELECT w.task, w.version, w.run, w.definition, w.completed, w.context, now()
FROM (
    SELECT unnest($1::uuid[]) AS task, unnest($2::bigint[]) AS version, unnest($3::bigint[]) AS run,
           unnest($4::bigint[]) AS definition, unnest($5::bigint[]) AS completed, unnest($6::text[]) AS context
) AS w
