-- New jobs, CREATED or with their first attempt at once; answers them.
-- ?1 JSON array of objects with the columns that are given, see jobs/columns.rs, ?2 the transaction's time
INSERT INTO job ({given}, created_at, state, attempt, counted, dispatched_at, past_attempts)
SELECT {given in w}, ?2, iif(w.value ->> 'node' IS NULL, 'CREATED', 'DISPATCHED'),
       iif(w.value ->> 'node' IS NULL, 0, 1), 0, iif(w.value ->> 'node' IS NULL, NULL, ?2), ''
FROM json_each(?1) AS w
RETURNING id
