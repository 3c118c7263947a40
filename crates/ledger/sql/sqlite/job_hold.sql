-- Holds those of a lane's jobs that are to be held once it has a new owner.
-- ?1 lane, ?2 when a held job is due that is CREATED, in microseconds since 1970
UPDATE job
SET held   = 1,
    due_at = iif(node IS NULL, ?2, due_at)
WHERE lane = ?1 AND on_recovery = 'hold' AND NOT held
