-- How far the marks of all snowflake workers are past the clock at least, in ms: 0 where a number has no row.
-- ?1 the highest number
SELECT CASE WHEN count(*) > ?1 THEN min(mark_ms) - {now_ms} ELSE 0 END AS ahead_ms
FROM id_worker
