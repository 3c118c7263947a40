-- Those of these jobs that are not finished, each with its state, and nothing of what it is about.
-- $1 ids
SELECT id, state FROM job WHERE id = ANY ($1::uuid[])
