-- As job_finished_pools, of each tenant.
-- $1 behind this tenant, $2 and this id in it, $3 how many
WITH piece AS (
    SELECT tenant, id FROM job_finished WHERE tenant <> '' AND (tenant, id) > ($1, $2) ORDER BY tenant, id LIMIT $3
)
SELECT tenant AS name, count(*) AS jobs, (SELECT id FROM piece ORDER BY tenant DESC, id DESC LIMIT 1) AS last
FROM piece
GROUP BY tenant
ORDER BY tenant
