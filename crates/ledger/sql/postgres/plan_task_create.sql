-- The tasks of a new plan.
-- $1 plan, $2 ids, $3 places, $4 tenants, $5 statuses, $6 documents
INSERT INTO plan_task (id, plan, place, tenant, status, run, definition, version, document, updated_at)
SELECT w.id, $1, w.place, w.tenant, w.status, 1, 1, 1, w.document, now()
FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[]) AS w (id, place, tenant, status, document)
