-- The tasks of a tenant, newest first. A page ends early when its tasks become too many bytes.
-- $1 tenant, $2 before this task, $3 limit, $4 bytes after which a page ends
{shown_task}
WHERE t.id IN (
    SELECT id
    FROM (
        SELECT id, sum(bytes) OVER (ORDER BY id DESC) - bytes AS bytes_before
        FROM (
            SELECT t.id, octet_length(t.document) + octet_length(d.stages) AS bytes
            FROM plan_task t
            JOIN plan_definition d ON d.task = t.id AND d.version = t.definition
            WHERE t.tenant = $1 AND t.id < $2
            ORDER BY t.id DESC
            LIMIT $3
        ) AS sized
    ) AS page
    WHERE bytes_before < $4
)
ORDER BY t.id DESC
