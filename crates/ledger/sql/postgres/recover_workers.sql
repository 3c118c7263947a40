-- Lifts the marks of all snowflake workers past the ids that were made since, and that instances may still make. A number that
-- has no row here may have had a holder since.
-- $1 the highest number, $2 how far ahead of the clock ids can be, in ms
INSERT INTO id_worker AS w (worker, node, mark_ms, fencing_token, updated_at)
SELECT number, '', (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $2, 0, now()
FROM generate_series(0, $1) AS number
ON CONFLICT (worker) DO UPDATE
SET mark_ms = greatest(w.mark_ms, excluded.mark_ms), updated_at = excluded.updated_at
