-- The tasks of a new plan.
-- ?1 plan, ?2 JSON array of {id, place, tenant, status, document}, ?3 the transaction's time
INSERT INTO plan_task (id, plan, place, tenant, status, run, definition, version, document, updated_at)
SELECT w.value ->> 'id', ?1, w.value ->> 'place', w.value ->> 'tenant', w.value ->> 'status', 1, 1, 1,
       w.value ->> 'document', ?3
FROM json_each(?2) AS w
