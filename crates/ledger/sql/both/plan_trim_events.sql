-- Deletes the oldest events of a plan. The last one stays, behind which the next would be counted.
-- $1 plan, $2 limit
DELETE FROM plan_event
WHERE plan = $1 AND seq IN (
    SELECT e.seq
    FROM plan_event e
    WHERE e.plan = $1 AND e.seq < (SELECT max(l.seq) FROM plan_event l WHERE l.plan = $1)
    ORDER BY e.seq
    LIMIT $2
)
