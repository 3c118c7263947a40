-- The first tasks of these plans with one of these statuses, in the order of each plan, with the first stage that is not
-- completed. Texts come as JSON. Neither contexts nor payloads leave the database. PostgreSQL reads no JSON text with the
-- character NUL, so another one stands for it.
-- $1 plans, $2 tasks of each plan, $3 statuses
SELECT t.plan, t.id, t.tenant, t.status, CAST(read.document -> 'reason' AS text) AS reason, next.place AS stage,
       CAST(CAST(d.stages AS json) -> CAST(next.place AS int) -> 'name' AS text) AS stage_name
FROM (
    SELECT id, row_number() OVER (PARTITION BY plan ORDER BY place) AS nth
    FROM plan_task
    WHERE plan = ANY ($1::uuid[]) AND status = ANY ($3::text[])
) AS found
JOIN plan_task t ON t.id = found.id
JOIN plan_definition d ON d.task = t.id AND d.version = t.definition
CROSS JOIN LATERAL (SELECT CAST(replace(t.document, '\u0000', '\ufffd') AS json) AS document) AS read
LEFT JOIN LATERAL (
    SELECT min(s.nth - 1) AS place
    FROM json_array_elements(read.document -> 'stages') WITH ORDINALITY AS s (stage, nth)
    WHERE s.stage ->> 'status' NOT IN ('SUCCEEDED', 'SKIPPED')
) AS next ON true
WHERE found.nth <= $2
ORDER BY t.plan, t.place
