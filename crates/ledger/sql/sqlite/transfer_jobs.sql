-- Jobs of a lane that wait, and are due, wait in another lane from now on; answers those that were as said.
-- ?1 JSON array of {id, lane}, ?2 the lane that they are in
UPDATE job AS j
SET lane = w.value ->> 'lane', due_at = NULL
FROM json_each(?1) AS w
WHERE j.id = w.value ->> 'id' AND j.lane = ?2 AND j.state = 'CREATED' AND NOT j.held
  AND (j.due_at IS NULL OR j.due_at <= {now})
RETURNING id
