-- The slots of finished jobs are free again; answers those of which that was not noted yet.
-- ?1 JSON array of ids, ?2 the transaction's time
UPDATE job_finished
SET released_at = ?2
WHERE id IN (SELECT value FROM json_each(?1)) AND released_at IS NULL
RETURNING id
