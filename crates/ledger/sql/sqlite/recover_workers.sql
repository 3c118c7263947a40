-- Lifts the marks of all snowflake workers past the ids that were made since, and that instances may still make. A number that
-- has no row here may have had a holder since.
-- ?1 the highest number, ?2 how far ahead of the clock ids can be, in ms
WITH RECURSIVE numbers (number) AS (
    SELECT 0
    UNION ALL
    SELECT number + 1 FROM numbers WHERE number < ?1
)
INSERT INTO id_worker (worker, node, mark_ms, fencing_token, updated_at)
SELECT number, '', {now_ms} + ?2, 0,
       {now}
FROM numbers
WHERE TRUE
ON CONFLICT (worker) DO UPDATE
SET mark_ms = max(id_worker.mark_ms, excluded.mark_ms), updated_at = excluded.updated_at
