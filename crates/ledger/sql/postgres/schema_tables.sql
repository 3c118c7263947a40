-- Which tables the ledger has that is in the first schema of the search path: those of the migrations, and that of the settings.
-- Where there is no ledger, tables of these names are another program's.
SELECT has_ledger AND '_sqlx_migrations' = ANY (names) AS has_first,
       has_ledger AND 'schema_migration' = ANY (names) AS has_later,
       has_ledger AND 'setting' = ANY (names) AS has_settings
FROM (
    SELECT names, names && ARRAY['signer_nonce_allocation', 'ledger_identity'] AS has_ledger
    FROM (
        SELECT coalesce(array_agg(c.relname::text), ARRAY[]::text[]) AS names
        FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema()
    ) AS relations
) AS found
