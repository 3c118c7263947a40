-- Which of these finished jobs are there and retried by no other job. The transaction began as a writer, so they stay.
-- ?1 JSON array of ids
SELECT id FROM job_finished WHERE id IN (SELECT value FROM json_each(?1)) AND retried_as IS NULL
