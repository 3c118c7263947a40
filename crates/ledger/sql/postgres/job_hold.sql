-- Holds those of a lane's jobs that are to be held once it has a new owner. Rows are locked in one order.
-- $1 lane, $2 when a held job is due that is CREATED, in microseconds since 1970
WITH mine AS (
    SELECT id FROM job WHERE lane = $1 AND on_recovery = 'hold' AND NOT held ORDER BY id FOR UPDATE
)
UPDATE job j
SET held   = TRUE,
    due_at = CASE WHEN j.node IS NULL THEN 'epoch'::timestamptz + $2 * interval '1 microsecond' ELSE j.due_at END
FROM mine
WHERE j.id = mine.id
