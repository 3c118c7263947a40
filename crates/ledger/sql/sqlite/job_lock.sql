-- Which of these unfinished jobs are there. The transaction began as a writer, so they stay.
-- ?1 JSON array of ids, ?2 the transaction's time
SELECT id, ?2 AS at FROM job WHERE id IN (SELECT value FROM json_each(?1))
