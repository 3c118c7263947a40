-- The state of an unfinished job, and nothing of what it is about.
-- $1 id
SELECT state FROM job WHERE id = $1
