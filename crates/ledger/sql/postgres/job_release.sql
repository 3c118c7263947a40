-- The slots of these attempts, the last ones of finished jobs, are free again; answers those of which that was not noted yet.
-- None in a ledger that went back in time.
-- $1 ids, $2 attempts, $3 the lowest and $4 the highest of the ids, by which partitions are left out
UPDATE job_finished AS f
SET released_at = now()
FROM (SELECT unnest($1::uuid[]) AS id, unnest($2::bigint[]) AS attempt) AS w
WHERE f.id = w.id AND f.attempt = w.attempt AND f.id BETWEEN $3 AND $4 AND f.released_at IS NULL
  AND (SELECT is_current FROM ledger_current)
RETURNING f.id
