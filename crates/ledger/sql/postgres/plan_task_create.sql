-- The tasks of a new plan.
-- $1 plan, $2 ids, $3 places, $4 tenants, $5 statuses, $6 documents
INSERT INTO plan_task (id, plan, place, tenant, status, run, definition, version, document, updated_at)
SELECT w.id, $1, w.place, w.tenant, w.status, 1, 1, 1, w.document, now()
FROM (
    SELECT unnest($2::uuid[]) AS id, unnest($3::bigint[]) AS place, unnest($4::text[]) AS tenant,
           unnest($5::text[]) AS status, unnest($6::text[]) AS document
) AS w
