-- New jobs, CREATED or with their first attempt at once; answers them.
-- The arguments from $1 on are the columns that are given, see jobs/columns.rs.
INSERT INTO job ({given}, created_at, state, attempt, counted, dispatched_at, past_attempts)
SELECT {given of w}, now(), CASE WHEN w.node IS NULL THEN 'CREATED' ELSE 'DISPATCHED' END,
       CASE WHEN w.node IS NULL THEN 0 ELSE 1 END, 0, CASE WHEN w.node IS NULL THEN NULL ELSE now() END, ''
FROM (SELECT {given unnested $1}) AS w
ORDER BY w.id
RETURNING id
