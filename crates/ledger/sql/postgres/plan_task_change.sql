-- Changes tasks that are still at the version before.
-- $1 ids, $2 new versions, $3 statuses, $4 runs, $5 definitions, $6 documents
UPDATE plan_task t
SET version = w.version, status = w.status, run = w.run, definition = w.definition, document = w.document,
    updated_at = now()
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::text[])
     AS w (id, version, status, run, definition, document)
WHERE t.id = w.id AND t.version = w.version - 1
