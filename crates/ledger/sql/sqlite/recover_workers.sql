-- Lifts the marks of snowflake workers past the ids that were made since.
-- ?1 how far ahead of the clock ids can be, in ms
UPDATE id_worker
SET mark_ms = max(mark_ms, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + ?1),
    updated_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
