-- How many finished jobs there are among the next so many, by their ids, and the last one's id. Reads an index.
-- $1 behind this id, $2 how many
WITH piece AS (
    SELECT id FROM job_finished WHERE id > $1 ORDER BY id LIMIT $2
)
SELECT count(*) AS jobs, (SELECT id FROM piece ORDER BY id DESC LIMIT 1) AS last
FROM piece
