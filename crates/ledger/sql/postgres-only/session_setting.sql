-- Whether the session began with a setting, which it has for the rest of the transaction in any case: the server alone knows
-- that 5000 is the same as 5s. And the database and the role, as the server has them, whatever a pooler calls them.
-- $1 name, $2 value
WITH began AS MATERIALIZED (SELECT current_setting($1, true) AS setting)
SELECT setting IS NOT DISTINCT FROM set_config($1, $2, true) AS has_it,
       current_database()::text AS database, session_user::text AS role
FROM began
