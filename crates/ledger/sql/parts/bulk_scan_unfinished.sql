-- So many unfinished jobs.
-- $1 behind this id, $9 before this id: later ones were made after the time $2, and are not read; $10 how many are read
WITH scanned AS (
    SELECT id, created_at, session, tenant, pool, kind, state, stage
    FROM job
    WHERE id > $1 AND id < $9
    ORDER BY id
    LIMIT $10
)
