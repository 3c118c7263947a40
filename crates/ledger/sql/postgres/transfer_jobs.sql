-- Jobs of a lane that wait, and are due, wait in another lane from now on; answers those that were as said. Rows are locked
-- in one order.
-- $1 ids, $2 their new lanes, $3 the lane that they are in
WITH mine AS (
    SELECT id FROM job WHERE id = ANY ($1::uuid[]) AND lane = $3 ORDER BY id FOR UPDATE
)
UPDATE job j
SET lane = w.lane, due_at = NULL
FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::text[]) AS lane) AS w
JOIN mine ON mine.id = w.id
WHERE j.id = w.id AND j.lane = $3 AND j.state = 'CREATED' AND NOT j.held AND (j.due_at IS NULL OR j.due_at <= now())
RETURNING j.id
