-- New checkpoints.
-- $1 tasks, $2 versions, $3 runs, $4 definitions, $5 completed stages, $6 contexts
INSERT INTO plan_checkpoint (task, version, run, definition, completed, context, saved_at)
SELECT w.task, w.version, w.run, w.definition, w.completed, w.context, now()
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
     AS w (task, version, run, definition, completed, context)
