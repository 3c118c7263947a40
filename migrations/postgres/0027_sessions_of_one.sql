-- The sessions of one tenant, or of one pool, for tokens that see no others.
CREATE INDEX session_tenant ON session (tenant, session) WHERE tenant IS NOT NULL;
CREATE INDEX session_pool ON session (pool, session) WHERE pool <> '';
