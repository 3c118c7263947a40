-- How many finished jobs of each pool there are among the next so many, by their pools and ids, and the last one's id. Reads
-- an index.
-- $1 behind this pool, $2 and this id in it, $3 how many
WITH piece AS (
    SELECT pool, id FROM job_finished WHERE pool <> '' AND (pool, id) > ($1, $2) ORDER BY pool, id LIMIT $3
)
SELECT pool AS name, count(*) AS jobs, (SELECT id FROM piece ORDER BY pool DESC, id DESC LIMIT 1) AS last
FROM piece
GROUP BY pool
ORDER BY pool
