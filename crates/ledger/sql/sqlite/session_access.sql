-- Who sees these sessions, by their tenants and pools.
-- ?1 JSON array of sessions
SELECT session, tenant, pool FROM session WHERE session IN (SELECT value FROM json_each(?1))
