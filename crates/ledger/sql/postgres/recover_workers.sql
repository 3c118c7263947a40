-- Lifts the marks of snowflake workers past the ids that were made since.
-- $1 how far ahead of the clock ids can be, in ms
UPDATE id_worker
SET mark_ms = greatest(mark_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1), updated_at = now()
