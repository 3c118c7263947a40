-- Raises the mark, though no further ahead of the database's clock than allowed: one that an instance with a wrong
-- clock asks for must not keep the number from others for long. It never falls.
-- Fenced in one statement: it locks the lease at exactly this token, or writes nothing. A takeover waits for it.
-- $1 worker, $2 token, $3 owner, $4 mark in ms since 1970, $5 how far ahead at most, in ms
WITH fence AS MATERIALIZED (
    SELECT FROM lease
    WHERE resource = 'id-worker:' || $1::integer AND fencing_token = $2 AND owner = $3
      AND (SELECT is_current FROM ledger_current)
    FOR KEY SHARE
)
UPDATE id_worker
SET mark_ms = greatest(mark_ms, least($4, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $5)), fencing_token = $2, updated_at = clock_timestamp()
WHERE worker = $1 AND EXISTS (SELECT FROM fence)
RETURNING mark_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS database_ms,
          {mark}
