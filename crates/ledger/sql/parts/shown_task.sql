-- A task, with its definition and the token of its tenant's lock.
SELECT t.id, t.plan, t.place, t.tenant, t.status, t.run, t.definition, t.version, t.document, t.updated_at, d.stages,
       l.fencing_token, coalesce(l.expires_at > {now}, FALSE) AS is_lock_live
FROM plan_task t
JOIN plan_definition d ON d.task = t.id AND d.version = t.definition
LEFT JOIN lease l ON l.resource = 'tenant:' || t.tenant AND l.owner = 'task:' || CAST(t.id AS text)
