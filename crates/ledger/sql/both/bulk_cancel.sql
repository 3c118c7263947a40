-- A bulk operation is to end; its owner ends it after the jobs that it is working on.
-- $1 id
UPDATE bulk
SET status = 'CANCELLING'
WHERE id = $1 AND status = 'RUNNING'
