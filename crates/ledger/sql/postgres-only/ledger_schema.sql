-- The first schema of the search path that has a ledger; where none has, the first of all, in which one would be made, and a
-- table for migrations that another program has there. No row where the path leads nowhere.
SELECT n.nspname::text AS schema,
       ledger.is_there AS has_ledger,
       CASE WHEN NOT ledger.is_there THEN (
           SELECT min(c.relname::text) FROM pg_class AS c
           WHERE c.relnamespace = n.oid AND c.relname IN ('_sqlx_migrations', 'schema_migration')
       ) END AS other
FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (name, place)
JOIN pg_namespace AS n ON n.nspname = path.name
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT FROM pg_class AS c
        WHERE c.relnamespace = n.oid AND c.relname IN ('signer_nonce_allocation', 'ledger_identity')
    ) AS is_there
) AS ledger
ORDER BY NOT ledger.is_there, path.place
LIMIT 1
