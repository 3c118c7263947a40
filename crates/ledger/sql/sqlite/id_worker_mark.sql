-- Raises the mark, though no further ahead of the database's clock than allowed: one that an instance with a wrong
-- clock asks for must not keep the number from others for long. It never falls.
-- Fenced in one statement: the one writer looks at the lease and writes.
-- ?1 worker, ?2 token, ?3 owner, ?4 mark in ms since 1970, ?5 how far ahead at most, in ms
UPDATE id_worker
SET mark_ms = max(mark_ms, min(?4, {now_ms} + ?5)), fencing_token = ?2, updated_at = {now}
WHERE worker = ?1 AND EXISTS (
    SELECT 1 FROM lease WHERE resource = 'id-worker:' || ?1 AND fencing_token = ?2 AND owner = ?3
)
RETURNING mark_ms, {now_ms} AS database_ms
