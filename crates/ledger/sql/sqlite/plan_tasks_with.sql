-- The tasks of a plan with one of these statuses in their order. A page ends early when its tasks become too many bytes.
-- ?1 plan, ?2 behind this place (-1 for the start), ?3 limit, ?4 JSON array of statuses, ?5 bytes after which a page ends
{shown_task}
WHERE t.id IN (
    SELECT id
    FROM (
        SELECT id, sum(bytes) OVER (ORDER BY place) - bytes AS bytes_before
        FROM (
            SELECT t.id, t.place, octet_length(t.document) + octet_length(d.stages) AS bytes
            FROM plan_task t
            JOIN plan_definition d ON d.task = t.id AND d.version = t.definition
            WHERE t.plan = ?1 AND t.place > ?2 AND t.status IN (SELECT value FROM json_each(?4))
            ORDER BY t.place
            LIMIT ?3
        ) AS sized
    ) AS page
    WHERE bytes_before < ?5
)
ORDER BY t.place
