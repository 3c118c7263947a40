-- How many finished jobs are kept: all of them (NULL), and those of each pool. Reads an index for each of the two from end
-- to end, and no job: not for every request.
SELECT CAST(NULL AS text) AS pool, count(*) AS jobs FROM job_finished
UNION ALL
SELECT pool, count(*) FROM job_finished WHERE pool <> '' GROUP BY pool
