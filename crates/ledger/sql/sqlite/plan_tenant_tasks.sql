-- The tasks of a tenant, newest first.
-- ?1 tenant, ?2 before this task, ?3 limit
SELECT t.id, t.plan, t.place, t.tenant, t.status, t.run, t.definition, t.version, t.document, t.updated_at, d.stages,
       l.fencing_token,
       coalesce(l.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000, FALSE) AS is_lock_live
FROM plan_task t
JOIN plan_definition d ON d.task = t.id AND d.version = t.definition
LEFT JOIN lease l ON l.resource = 'tenant:' || t.tenant AND l.owner = 'task:' || CAST(t.id AS text)
WHERE t.tenant = ?1 AND t.id < ?2
ORDER BY t.id DESC
LIMIT ?3
