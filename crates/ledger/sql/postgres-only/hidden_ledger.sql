-- The first schema of the search path, as it is set, that has a ledger and may not be used by the role; no row where another
-- ledger is found. A schema that may not be used is left out of the search, so that its tables seem not to be there.
SELECT n.nspname::text AS schema, current_user::text AS role
FROM (
    SELECT place, coalesce(replace(words[1], '""', '"'), lower(words[2])) AS name
    FROM regexp_matches(current_setting('search_path'), '"((?:[^"]|"")*)"|([^",[:space:]]+)', 'g')
             WITH ORDINALITY AS part (words, place)
) AS listed
JOIN pg_namespace AS n
  ON n.nspname::text = CASE listed.name WHEN '$user' THEN current_user::text ELSE listed.name END
WHERE coalesce(to_regclass('signer_nonce_allocation'), to_regclass('ledger_identity')) IS NULL
  AND NOT has_schema_privilege(n.oid, 'USAGE')
  AND EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = n.oid AND c.relname = 'signer_nonce_allocation')
ORDER BY listed.place
LIMIT 1
