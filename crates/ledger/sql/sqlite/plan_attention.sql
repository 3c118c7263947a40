-- The first tasks of these plans with one of these statuses, in the order of each plan, with the first stage that is not
-- completed. Texts come as JSON. Neither contexts nor payloads leave the database, and no document of another task is read.
-- ?1 JSON array of plans, ?2 tasks of each plan, ?3 JSON array of statuses
SELECT f.plan, f.id, f.tenant, f.status, f.document -> '$.reason' AS reason, f.stage,
       d.stages -> ('$[' || f.stage || '].name') AS stage_name
FROM (
    SELECT t.plan, t.id, t.place, t.tenant, t.status, t.document, t.definition,
           (
               SELECT min(s.key)
               FROM json_each(t.document, '$.stages') AS s
               WHERE s.value ->> '$.status' NOT IN ('SUCCEEDED', 'SKIPPED')
           ) AS stage
    FROM (
        SELECT id, row_number() OVER (PARTITION BY plan ORDER BY place) AS nth
        FROM plan_task
        WHERE plan IN (SELECT value FROM json_each(?1)) AND status IN (SELECT value FROM json_each(?3))
    ) AS found
    JOIN plan_task t ON t.id = found.id
    WHERE found.nth <= ?2
) AS f
JOIN plan_definition d ON d.task = f.id AND d.version = f.definition
ORDER BY f.plan, f.place
