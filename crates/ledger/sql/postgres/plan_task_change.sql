-- Changes tasks that are still at the version before.
-- $1 ids, $2 new versions, $3 statuses, $4 runs, $5 definitions, $6 documents
UPDATE plan_task t
SET version = w.version, status = w.status, run = w.run, definition = w.definition, document = w.document,
    updated_at = now()
FROM (
    SELECT unnest($1::uuid[]) AS id, unnest($2::bigint[]) AS version, unnest($3::text[]) AS status,
           unnest($4::bigint[]) AS run, unnest($5::bigint[]) AS definition, unnest($6::text[]) AS document
) AS w
WHERE t.id = w.id AND t.version = w.version - 1
