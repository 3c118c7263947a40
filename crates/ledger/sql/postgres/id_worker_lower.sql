-- Lowers the mark of a holder that makes no more ids. The statement never raises it.
-- Fenced in one statement: it locks the lease at exactly this token, or writes nothing. A takeover waits for it.
-- $1 worker, $2 token, $3 owner, $4 mark in ms since 1970
WITH fence AS MATERIALIZED (
    SELECT FROM lease
    WHERE resource = 'id-worker:' || $1::integer AND fencing_token = $2 AND owner = $3
    FOR KEY SHARE
)
UPDATE id_worker
SET mark_ms = least(mark_ms, $4), fencing_token = $2, updated_at = clock_timestamp()
WHERE worker = $1 AND EXISTS (SELECT FROM fence)
RETURNING mark_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS database_ms
