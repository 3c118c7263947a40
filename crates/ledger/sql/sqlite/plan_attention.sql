-- The first tasks of these plans with one of these statuses, in the order of each plan, with the first stage that is not
-- completed. Texts come as JSON. Neither contexts nor payloads leave the database.
-- ?1 JSON array of plans, ?2 tasks of each plan, ?3 JSON array of statuses
SELECT f.plan, f.id, f.tenant, f.status, f.document -> '$.reason' AS reason, f.stage,
       d.stages -> ('$[' || f.stage || '].name') AS stage_name
FROM (
    SELECT t.plan, t.id, t.place, t.tenant, t.status, t.document, t.definition,
           row_number() OVER (PARTITION BY t.plan ORDER BY t.place) AS nth,
           (
               SELECT min(s.key)
               FROM json_each(t.document, '$.stages') AS s
               WHERE s.value ->> '$.status' NOT IN ('SUCCEEDED', 'SKIPPED')
           ) AS stage
    FROM plan_task t
    WHERE t.plan IN (SELECT value FROM json_each(?1)) AND t.status IN (SELECT value FROM json_each(?3))
) AS f
JOIN plan_definition d ON d.task = f.id AND d.version = f.definition
WHERE f.nth <= ?2
ORDER BY f.plan, f.place
