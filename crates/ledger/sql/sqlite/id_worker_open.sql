-- Notes a new holder of a number; answers the mark that the holders before have left.
-- Fenced in one statement: the one writer looks at the lease and writes.
-- ?1 worker, ?2 token, ?3 owner, ?4 node
INSERT INTO id_worker (worker, node, mark_ms, fencing_token, updated_at)
SELECT ?1, ?4, 0, ?2, {now}
WHERE EXISTS (
    SELECT 1 FROM lease WHERE resource = 'id-worker:' || ?1 AND fencing_token = ?2 AND owner = ?3
)
ON CONFLICT (worker) DO UPDATE
SET node = excluded.node, fencing_token = excluded.fencing_token, updated_at = excluded.updated_at
RETURNING mark_ms, {now_ms} AS database_ms
