-- Who sees these sessions, by their tenants and pools.
-- $1 sessions
SELECT session, tenant, pool FROM session WHERE session = ANY ($1::text[])
