-- The slots of these attempts, the last ones of finished jobs, are free again; answers those of which that was not noted yet.
-- ?1 JSON array of {id, attempt}, ?2 the transaction's time
UPDATE job_finished AS f
SET released_at = ?2
FROM json_each(?1) AS w
WHERE f.id = w.value ->> 'id' AND f.attempt = w.value ->> 'attempt' AND f.released_at IS NULL
RETURNING id
