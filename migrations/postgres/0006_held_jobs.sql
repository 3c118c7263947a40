-- A job whose on_recovery is 'hold' is held once its lane has a new owner: no attempt of it begins any more. A held job
-- that is CREATED is due in the year 2255, so that nobody who looks for due jobs finds it.
ALTER TABLE job ADD COLUMN held boolean NOT NULL DEFAULT FALSE;
-- What a new owner holds.
CREATE INDEX job_to_hold ON job (lane, id) WHERE on_recovery = 'hold' AND NOT held;
