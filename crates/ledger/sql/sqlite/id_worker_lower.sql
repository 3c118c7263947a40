-- Lowers the mark of a holder that makes no more ids. The statement never raises it.
-- Fenced in one statement: the one writer looks at the lease and writes.
-- ?1 worker, ?2 token, ?3 owner, ?4 mark in ms since 1970
UPDATE id_worker
SET mark_ms = min(mark_ms, ?4), fencing_token = ?2, updated_at = {now}
WHERE worker = ?1 AND EXISTS (
    SELECT 1 FROM lease WHERE resource = 'id-worker:' || ?1 AND fencing_token = ?2 AND owner = ?3
)
RETURNING mark_ms, {now_ms} AS database_ms
