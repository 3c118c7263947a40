-- Whether the role may do all with the tables and views that a refusal names. Rights on others may be missing on purpose.
-- $1 the words of the refusal
SELECT NOT EXISTS (
    SELECT FROM pg_class c
    WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'lease'::regclass)
      AND c.relkind IN ('r', 'p', 'v')
      AND $1::text ~ ('\m' || c.relname || '\M')
      AND NOT (
          has_table_privilege(c.oid, 'SELECT')
          AND (
              c.relkind = 'v'
              OR (
                  has_table_privilege(c.oid, 'INSERT')
                  AND has_table_privilege(c.oid, 'UPDATE')
                  AND has_table_privilege(c.oid, 'DELETE')
              )
          )
      )
) AS is_allowed
