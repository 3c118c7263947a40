-- Notes a new holder of a number; answers the mark that the holders before have left.
-- Fenced in one statement: it locks the lease at exactly this token, or writes nothing. A takeover waits for it.
-- $1 worker, $2 token, $3 owner, $4 node
WITH fence AS MATERIALIZED (
    SELECT FROM lease
    WHERE resource = 'id-worker:' || $1::integer AND fencing_token = $2 AND owner = $3
      AND (SELECT is_current FROM ledger_current)
    FOR KEY SHARE
)
INSERT INTO id_worker (worker, node, mark_ms, fencing_token, updated_at)
SELECT $1, $4, 0, $2, clock_timestamp() FROM fence
ON CONFLICT (worker) DO UPDATE
SET node = excluded.node, fencing_token = excluded.fencing_token, updated_at = excluded.updated_at
RETURNING mark_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS database_ms
